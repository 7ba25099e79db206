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
  return request.stream_targets ? *request.stream_targets : context_.config.spec.stream_to;
}

// The short way of what passes for every token.
bool OutputRouter::add_now(LoopRequest& request, Body& body, bool to_client) {
  static const std::string client;
  if (!is_delta(body)) return false;
  if (to_client) return sender_.add_now(request, client, body);
  const std::vector<std::string>& targets = stream_targets(request);
  return targets.size() == 1 && sender_.add_now(request, targets.front(), body);
}

bool OutputRouter::take_now(ReqId id, Body& delta, bool to_all) {
  const StageSpec& spec = context_.config.spec;
  const bool to_client = !to_all || spec.stream_to.empty();
  if (to_client && !spec.terminal) return false;
  LoopRequest* request = requests_.live(id);
  return request && !request->resulted && add_now(*request, delta, to_client);
}

void OutputRouter::on_output(LoopRequest& request, WorkOutput& output) {
  if (output.kind == WorkOutput::Kind::kDropped) {
    request.in_worker = LoopRequest::InWorker::kGone;
    return requests_.check(request);
  }
  if (!request.is_live() || request.resulted) return;
  if (output.kind == WorkOutput::Kind::kChunk) return on_chunk(request, output);
  if (output.kind == WorkOutput::Kind::kResult) return on_result(request, std::get<Value>(output.body));
  context_.fail(request, *output.error);
}

void OutputRouter::on_chunk(LoopRequest& request, WorkOutput& output) {
  const StageSpec& spec = context_.config.spec;
  const bool to_client = output.to_all ? spec.stream_to.empty() : output.to_client();
  if (to_client && !spec.terminal) {
    return context_.fail(
        request, internal_error("the worker streams to the client; only a terminal may, or one with stream_to"));
  }
  if (add_now(request, output.body, to_client)) return;
  OutItem item{.kind = OutItem::Kind::kValue};
  if (output.target) item.modality = output.target->modality;
  if (Status status = fill(item, output.body); !status.ok()) {
    return context_.fail(request, status.with_prefix("a chunk"));
  }
  if (to_client) return sender_.add(request, "", std::move(item));
  if (!request.stream_targets && rules_.has_stream_rule()) {
    return context_.fail(
        request, internal_error("the worker streams before its payload; stream_done_to decides by the payload"));
  }
  stream_to_stages(request, output, item);
}

void OutputRouter::stream_to_stages(LoopRequest& request, const WorkOutput& output, const OutItem& item) {
  bool any = output.to_all;
  for (const std::string& target : stream_targets(request)) {
    if (!output.to_all && target != output.target->stage) continue;
    any = true;
    if (!is_wanted(request, target)) continue;
    sender_.add(request, target, item);
    if (!request.is_live()) return;
  }
  if (any) return;
  context_.fail(request, internal_error("the worker streams to '{}'; wanted one to whom this request streams",
                                        output.target->stage));
}

// The ends of the streams, then the result, each in its edge's order.
void OutputRouter::on_result(LoopRequest& request, const Value& result) {
  const Result<LoopRules::Names> targets = rules_.route(request.id, result);
  if (!targets.ok()) return context_.fail(request, targets.status());
  request.resulted = true;
  work_.drop(request);
  streams_.report_complete_inputs(request);
  for (const std::string& target : stream_targets(request)) {
    if (!is_wanted(request, target)) continue;
    sender_.add(request, target, {.kind = OutItem::Kind::kEnd});
    if (!request.is_live()) return;
  }
  for (const std::string& target : *targets) {
    if (!is_wanted(request, target)) continue;
    send_result(request, target, rules_.project(target, result));
    if (!request.is_live()) return;
  }
  if (context_.config.spec.terminal) send_result(request, "", lift(result));
  if (!request.is_live()) return;
  streams_.deliver(request);  // what is still held counts as taken
  requests_.check(request);
}

void OutputRouter::send_result(LoopRequest& request, const std::string& target, Result<Lifted> lifted) {
  if (!lifted.ok()) {
    const std::string what = target.empty() ? "the result" : fmt::format("the result for '{}'", target);
    return context_.fail(request, lifted.status().with_prefix(what));
  }
  const std::size_t size_bytes = size_of(*lifted);
  sender_.add(request, target,
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
