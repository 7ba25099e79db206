#include "wire/chunk.h"

#include "wire/checks.h"

namespace millrace::wire {
namespace {

Status check_opening(const Chunk& chunk, bool to_coordinator) {
  // Chunk 0 begins a stream at a stage that may not know the request yet: the opening has what a Submit would. The
  // coordinator has that itself, and a repeated opening in a later chunk could contradict the first.
  const bool wanted = !to_coordinator && is_numbered(chunk.body) && chunk.seq == 0;
  if (chunk.opening.has_value() != wanted) {
    return invalid_argument("chunk {} {} an opening; wanted one in chunk 0 to a stage, and only there", chunk.seq,
                            wanted ? "lacks" : "has");
  }
  if (!wanted) return ok_status();
  RETURN_IF_ERROR(check_names("terminal", chunk.opening->terminals));
  RETURN_IF_ERROR(check_route(chunk.opening->route));
  return check_traceparent(chunk.opening->traceparent);
}

Status check_body(const TokenDelta&, bool to_coordinator) {
  if (!to_coordinator) return ok_status();
  return invalid_argument("token ids are sent to the coordinator; wanted text");
}
Status check_body(const TextDelta&, bool) { return ok_status(); }
Status check_body(const StreamValue& body, bool) {
  RETURN_IF_ERROR(check_text("modality", body.modality));
  return validate(body.payload).with_prefix("payload");
}
Status check_body(const StreamEnd&, bool to_coordinator) {
  if (!to_coordinator) return ok_status();
  return invalid_argument("the end of a stream is sent to the coordinator; wanted the result");
}
Status check_body(const StageResult& body, bool) { return validate(body.payload).with_prefix("result"); }
Status check_body(const Failure& body, bool) { return check_failure("failure", body); }
Status check_body(const InputsComplete& body, bool to_coordinator) {
  if (!to_coordinator) return invalid_argument("complete inputs are reported to a stage; wanted the coordinator");
  return check_names("source", body.sources);
}
Status check_body(const SentCount&, bool) { return ok_status(); }

}  // namespace

const Payload* payload_of(const ChunkBody& body) {
  if (const auto* value = std::get_if<StreamValue>(&body)) return &value->payload;
  if (const auto* result = std::get_if<StageResult>(&body)) return &result->payload;
  return nullptr;
}

Status validate(const Chunk& chunk, bool to_coordinator) {
  if (!is_numbered(chunk.body) && chunk.seq != 0) {
    return invalid_argument("seq is {} of a chunk without a number; wanted 0", chunk.seq);
  }
  RETURN_IF_ERROR(check_opening(chunk, to_coordinator));
  return std::visit([to_coordinator](const auto& body) { return check_body(body, to_coordinator); }, chunk.body);
}

Status validate(const ChunkBatch& message) {
  RETURN_IF_ERROR(check_origin(message.from, false));
  if (!message.to.empty()) RETURN_IF_ERROR(check_name("to", message.to));
  for (std::size_t i = 0; i < message.chunks.size(); ++i) {
    // `to` is empty where the coordinator is meant.
    Status status = validate(message.chunks[i], message.to.empty());
    if (!status.ok()) return status.with_prefix(fmt::format("chunk {} of the batch", i));
  }
  return ok_status();
}

Status validate(const AckBatch& message) {
  RETURN_IF_ERROR(check_origin(message.from, true));
  return check_name("to", message.to);
}

}  // namespace millrace::wire
