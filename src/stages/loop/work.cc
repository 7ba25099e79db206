// To and from the worker.
#include "payload/packing.h"
#include "stages/stage_loop.h"

namespace millrace {

using loop::WorkEvent;
using loop::WorkOutput;

// Its senders get their credits back before it has its turn: they need them for other requests.
void StageLoop::let_wait(WorkEvent& event) {
  if (!event.place) event.place = detached_.detach(event.body);
}

void StageLoop::to_worker(Request& request, WorkEvent event) {
  request.to_worker.push_back(std::move(event));
  if (!request.in_worker_line) post_events(request);
  if (!request.to_worker.empty()) let_wait(request.to_worker.back());
}

// In order; what finds no room waits in the line of all requests.
void StageLoop::post_events(Request& request) {
  request.in_worker_line = false;
  while (!request.to_worker.empty()) {
    WorkEvent& event = request.to_worker.front();
    const WorkEvent::Kind kind = event.kind;
    const auto stream = request.in.find(event.from);
    // What came of the chunks before still waits for its own receivers: this one's sender shall wait too.
    const bool congested = kind == WorkEvent::Kind::kChunk && request.congested;
    if (!congested && doors_.worker->waiting() >= loop::kUncopiedEvents) let_wait(event);
    if (congested || !doors_.worker->post(event, now_ms_)) {
      if (!congested) ++counters_.refusals;
      request.in_worker_line = true;
      worker_line_.push_back(request.id);
      retry_ms_ = std::min(retry_ms_, now_ms_ + loop::kRetryMs);
      return;
    }
    more_to_settle_ = true;
    if (kind == WorkEvent::Kind::kDrop) {
      request.in_worker = Request::InWorker::kDropping;
    } else if (request.in_worker == Request::InWorker::kUnknown) {
      request.in_worker = Request::InWorker::kKnown;
    }
    if (kind == WorkEvent::Kind::kChunk) chunk_posted(request, stream->first, stream->second);
    request.to_worker.pop_front();
  }
}

// The worker's host has one more chunk of a stream.
void StageLoop::chunk_posted(Request& request, const std::string& from, loop::InEdge& edge) {
  if (request.in_worker == Request::InWorker::kUnknown) request.in_worker = Request::InWorker::kKnown;
  more_to_settle_ = true;
  ++counters_.chunks_in;
  ++edge.delivered;
  acknowledge_if_due(request.id, from, edge);
}

// The worker hears of the request for the last time, or never, where it was not told of it.
void StageLoop::drop_from_worker(Request& request) {
  for (const WorkEvent& event : request.to_worker) {
    if (event.kind == WorkEvent::Kind::kChunk) ++request.in.at(event.from).delivered;
  }
  request.to_worker.clear();
  if (request.in_worker == Request::InWorker::kUnknown) request.in_worker = Request::InWorker::kGone;
  if (request.in_worker == Request::InWorker::kKnown)
    to_worker(request, {.kind = WorkEvent::Kind::kDrop, .id = request.id});
  maybe_over(request);
}

void StageLoop::on_outputs(std::vector<WorkOutput>& outputs) {
  for (WorkOutput& item : outputs) {
    if (item.kind == WorkOutput::Kind::kCrash) {
      for (const auto& [id, request] : requests_) {
        const bool with_worker = request->in_worker == Request::InWorker::kKnown;
        if (request->phase == Request::Phase::kLive && with_worker) fail(*request, item.status);
      }
      continue;
    }
    if (item.kind == WorkOutput::Kind::kReply) {
      reply(item.command, item.status.ok() ? Result<std::string>(std::move(item.text)) : item.status);
      continue;
    }
    const auto found = requests_.find(item.id);
    if (found != requests_.end()) on_output(*found->second, item);
  }
}

void StageLoop::on_output(Request& request, WorkOutput& output) {
  if (output.kind == WorkOutput::Kind::kDropped) {
    request.in_worker = Request::InWorker::kGone;
    return maybe_over(request);
  }
  // Outputs for a request that has ended, or after its result, are ignored.
  if (request.phase != Request::Phase::kLive || request.resulted) return;
  switch (output.kind) {
    case WorkOutput::Kind::kChunk:
      return on_chunk(request, output);
    case WorkOutput::Kind::kResult:
      return on_result(request, std::get<Value>(std::move(output.body)));
    default:
      return fail(request, output.status);
  }
}

namespace {

std::size_t size_of(const Lifted& lifted) {
  std::size_t bytes = lifted.tree.size();
  for (const SharedBytes& part : lifted.parts) bytes += part.size_bytes();
  return bytes;
}

// About what a delta holds: for limits, not for the wire.
std::size_t size_of(const wire::TokenDelta& delta) {
  return sizeof(int32_t) * delta.tokens.size() +
         sizeof(wire::TokenLogprobs) * (delta.logprobs.size() + delta.prompt_logprobs.size());
}
std::size_t size_of(const wire::TextDelta& delta) {
  return delta.text.size() + sizeof(int32_t) * delta.tokens.size() +
         sizeof(wire::TokenLogprobs) * (delta.logprobs.size() + delta.prompt_logprobs.size());
}

std::size_t size_of_delta(const Body& body) {
  const auto* tokens = std::get_if<wire::TokenDelta>(&body);
  return tokens ? size_of(*tokens) : size_of(std::get<wire::TextDelta>(body));
}

wire::ChunkBody chunk_body(Body&& delta) {
  if (auto* tokens = std::get_if<wire::TokenDelta>(&delta)) return std::move(*tokens);
  return std::get<wire::TextDelta>(std::move(delta));
}

Status fill(loop::OutItem& item, Body& body) {
  if (auto* value = std::get_if<Value>(&body)) {
    ASSIGN_OR_RETURN(item.lifted, lift(*value));
    item.size_bytes = size_of(item.lifted);
  } else if (auto* tokens = std::get_if<wire::TokenDelta>(&body)) {
    item.size_bytes = size_of(*tokens);
    item.delta = std::move(*tokens);
  } else {
    item.size_bytes = size_of(std::get<wire::TextDelta>(body));
    item.delta = std::get<wire::TextDelta>(std::move(body));
  }
  return ok_status();
}

}  // namespace

// The short way of what passes for every token: a delta for one receiver that waits for nothing goes straight into the
// receiver's batch. False: it takes the queue, as all else does.
bool StageLoop::send_delta(Request& request, Body& body, bool to_client) {
  if (std::holds_alternative<Value>(body)) return false;
  const std::vector<std::string>& streams = request.stream_targets ? *request.stream_targets : config_.spec.stream_to;
  if (!to_client && streams.size() != 1) return false;
  const auto found = request.out.find(to_client ? std::string() : streams.front());
  if (found == request.out.end() || !found->second.may_append()) return false;
  loop::OutEdge& edge = found->second;
  const std::size_t size_bytes = size_of_delta(body);
  if (to_client && edge.client_bytes_sum + size_bytes > wire::kMaxUnackedClientBytes) return false;
  const loop::Outgoing::Receiver address = address_of(edge);
  if (!outgoing_.has_capacity(address, size_bytes)) return false;
  wire::Chunk chunk{.id = request.id, .seq = edge.sent, .body = chunk_body(std::move(body))};
  CHECK(outgoing_.append(address, chunk, size_bytes).ok());
  count_sent(edge, size_bytes);
  return true;
}

void StageLoop::on_chunk(Request& request, WorkOutput& output) {
  const StageSpec& spec = config_.spec;
  const bool to_client = output.to_all ? spec.stream_to.empty() : output.target.empty();
  if (to_client && !spec.terminal) {
    return fail(request,
                internal_error("the worker streams to the client; only a terminal may, or one with stream_to"));
  }
  if (send_delta(request, output.body, to_client)) return;
  loop::OutItem item{.kind = loop::OutItem::Kind::kValue, .modality = output.modality};
  if (Status status = fill(item, output.body); !status.ok()) return fail(request, status.with_prefix("a chunk"));
  if (to_client) return queue(request, "", std::move(item));
  if (!request.stream_targets && rules_.stream_done_to) {
    return fail(request,
                internal_error("the worker streams before its payload; stream_done_to decides by the payload"));
  }
  const std::vector<std::string>& active = request.stream_targets ? *request.stream_targets : spec.stream_to;
  bool any = output.to_all;
  for (const std::string& target : active) {
    if (!output.to_all && target != output.target) continue;
    any = true;
    if (!wanted(request, target)) continue;
    queue(request, target, item);
    if (request.phase != Request::Phase::kLive) return;
  }
  if (!any)
    fail(request, internal_error("the worker streams to '{}'; wanted one to whom this request streams", output.target));
}

// The ends of the streams, then the result, each in its edge's order.
void StageLoop::on_result(Request& request, Value result) {
  Result<std::vector<std::string>> targets =
      targets_of(rules_.route, config_.spec.next, request.id, result, "route", false);
  if (!targets.ok()) return fail(request, targets.status());
  request.resulted = true;
  drop_from_worker(request);
  report_inputs(request);
  const std::vector<std::string> streams = request.stream_targets.value_or(config_.spec.stream_to);
  for (const std::string& target : streams) {
    if (!wanted(request, target)) continue;
    queue(request, target, {.kind = loop::OutItem::Kind::kEnd});
    if (request.phase != Request::Phase::kLive) return;
  }
  for (const std::string& target : *targets) {
    if (!wanted(request, target)) continue;
    Result<Lifted> lifted = project(target, result);
    if (!lifted.ok()) return fail(request, lifted.status().with_prefix(fmt::format("the result for '{}'", target)));
    const std::size_t size_bytes = size_of(*lifted);
    queue(request, target,
          {.kind = loop::OutItem::Kind::kResult, .lifted = std::move(*lifted), .size_bytes = size_bytes});
    if (request.phase != Request::Phase::kLive) return;
  }
  if (config_.spec.terminal) {
    Result<Lifted> lifted = lift(result);
    if (!lifted.ok()) return fail(request, lifted.status().with_prefix("the result"));
    const std::size_t size_bytes = size_of(*lifted);
    queue(request, "", {.kind = loop::OutItem::Kind::kResult, .lifted = std::move(*lifted), .size_bytes = size_bytes});
  }
  if (request.phase != Request::Phase::kLive) return;
  deliver(request);  // what is still held counts as taken
  maybe_over(request);
}

Result<Lifted> StageLoop::project(const std::string& target, const Value& result) const {
  const auto rule = rules_.project.find(target);
  if (rule == rules_.project.end() || !rule->second) return lift(result);
  try {
    ASSIGN_OR_RETURN(const Value projected, rule->second(result));
    return lift(projected);
  } catch (const std::exception& e) {
    return internal_error("project_payload threw: {}", e.what());
  } catch (...) {
    return internal_error("project_payload threw something that is no exception");
  }
}

}  // namespace millrace
