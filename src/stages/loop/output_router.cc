#include "stages/loop/output_router.h"

#include <algorithm>
#include <utility>

#include "payload/packing.h"

namespace millrace::loop {
namespace {

std::size_t size_of(const Lifted& lifted) {
  std::size_t bytes = lifted.tree.size();
  for (const SharedBytes& part : lifted.parts) bytes += part.size_bytes();
  return bytes;
}

Status fill(OutItem& item, Body& body) {
  if (auto* value = std::get_if<Value>(&body)) {
    ASSIGN_OR_RETURN(item.lifted, lift(*value));
    item.size_bytes = size_of(item.lifted);
    return ok_status();
  }
  item.size_bytes = size_of_delta(body);
  item.delta = take_delta(body);
  return ok_status();
}

}  // namespace

const std::vector<std::string>& OutputRouter::stream_targets(const LoopRequest& request) const {
  return request.out.stream_targets ? *request.out.stream_targets : context_.config.spec.stream_to;
}

// The one receiver of a chunk, as nearly all have; null: there are others too.
const std::string* OutputRouter::only_target(const LoopRequest& request, bool to_client) const {
  static const std::string client;
  if (to_client) return &client;
  const std::vector<std::string>& targets = stream_targets(request);
  return targets.size() == 1 ? &targets.front() : nullptr;
}

Status OutputRouter::end(LoopRequest& request, const WorkOutput& output) {
  if (output.kind == WorkOutput::Kind::kDropped) return work_.on_dropped(request), ok_status();
  if (!request.is_live() || request.work.resulted) return ok_status();
  if (output.kind == WorkOutput::Kind::kResult) return send_results(request, std::get<Value>(output.body));
  return *output.error;
}

Status OutputRouter::route(LoopRequest& request, WorkOutput& output) {
  if (!request.is_live() || request.work.resulted) return ok_status();
  const StageSpec& spec = context_.config.spec;
  const bool to_client = output.to_all ? spec.stream_to.empty() : output.to_client();
  if (to_client && !spec.terminal) {
    return internal_error("the worker streams to the client; only a terminal may, or one with stream_to");
  }
  // The fast path for per-token deltas.
  const std::string* target = is_delta(output.body) ? only_target(request, to_client) : nullptr;
  if (target && sender_.append(request, *target, output.body)) return ok_status();
  OutItem item{.kind = OutItem::Kind::kValue};
  if (output.target) item.modality = output.target->modality;
  RETURN_IF_ERROR(fill(item, output.body).with_prefix("a chunk"));
  if (to_client) return sender_.add(request, "", std::move(item));
  if (!request.out.stream_targets && rules_.has_stream_rule()) {
    return internal_error("the worker streams before its payload; stream_done_to decides by the payload");
  }
  return send_to_stages(request, output, item);
}

Status OutputRouter::send_to_stages(LoopRequest& request, const WorkOutput& output, const OutItem& item) {
  bool any = output.to_all;
  for (const std::string& target : stream_targets(request)) {
    if (!output.to_all && target != output.target->stage) continue;
    any = true;
    if (is_wanted(request, target)) RETURN_IF_ERROR(sender_.add(request, target, item));
  }
  if (any) return ok_status();
  return internal_error("the worker streams to '{}'; wanted one to whom this request streams", output.target->stage);
}

// The ends of the streams, then the result, each in its edge's order.
Status OutputRouter::send_results(LoopRequest& request, const Value& result) {
  ASSIGN_OR_RETURN(const LoopRules::Names targets, rules_.route(request.id, result));
  work_.finish(request);
  streams_.report_complete_inputs(request);
  for (const std::string& target : stream_targets(request)) {
    if (is_wanted(request, target)) RETURN_IF_ERROR(sender_.add(request, target, {.kind = OutItem::Kind::kEnd}));
  }
  for (const std::string& target : targets) {
    if (is_wanted(request, target)) RETURN_IF_ERROR(send_result(request, target, rules_.project(target, result)));
  }
  if (context_.config.spec.terminal) RETURN_IF_ERROR(send_result(request, "", lift(result)));
  streams_.deliver(request);  // what is still held counts as taken
  requests_.check(request);
  return ok_status();
}

Status OutputRouter::send_result(LoopRequest& request, const std::string& target, Result<Lifted> lifted) {
  if (!lifted.ok()) {
    return lifted.status().with_prefix(target.empty() ? "the result" : fmt::format("the result for '{}'", target));
  }
  const std::size_t size_bytes = size_of(*lifted);
  return sender_.add(request, target,
                     {.kind = OutItem::Kind::kResult, .lifted = std::move(lifted).value(), .size_bytes = size_bytes});
}

// What goes to a stage from which no terminal of the request can be reached is of no use.
bool OutputRouter::is_wanted(const LoopRequest& request, const std::string& target) const {
  const auto known = context_.config.reaches.find(target);
  if (known == context_.config.reaches.end() || request.terminals.empty()) return true;
  return std::any_of(request.terminals.begin(), request.terminals.end(),
                     [&known](const std::string& terminal) { return contains(known->second, terminal); });
}

}  // namespace millrace::loop
