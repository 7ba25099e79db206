#include "stages/loop/request_ends.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "base/utf8.h"
#include "stages/loop/request_report.h"
#include "stages/loop/request_span.h"
#include "wire/limits.h"

namespace millrace::loop {

void RequestEnds::fail(LoopRequest& request, Status why) {
  if (!request.is_live()) return;
  ++context_.counters.failed;
  // All deadlines expire together. The coordinator's message names the limit; ours would name only this stage.
  const bool is_over = why.code() == StatusCode::kDeadline && context_.now_ms >= request.deadline_ms;
  if (is_over && context_.now_ms < request.deadline_ms + kDeadlineGraceMs) return cancel(request, why);
  why = why.with_prefix(context_.stage());
  std::string text = utf8_repair(why.message());
  text = std::string(utf8_prefix(text, wire::kMaxErrorBytes));
  LOG_DEBUG("request {} failed: {}", request.id.value, text);
  notices_.add(wire::Chunk{.id = request.id, .body = wire::Failure{why.code(), text}});
  sender_.report_failure(request, Status(why.code(), text));
  cancel(request, Status(why.code(), text));
}

void RequestEnds::abort(ReqId id) {
  LoopRequest* request = requests_.find(id);
  if (!request) {
    // Unknown, not here yet, or over: what may still come of it starts nothing.
    requests_.tombstones().add(id, Ended::kAborted, context_.now_ms);
    return notices_.add(wire::Message(wire::AbortAck{.id = id, .from = context_.origin()}));
  }
  request->aborted = true;  // acknowledged when all is over
  if (request->is_live()) cancel(*request, Status(StatusCode::kCancelled, "the request was aborted"));
}

// From here on only ends are awaited.
void RequestEnds::cancel(LoopRequest& request, const Status& why) {
  end_span(context_, request, why);  // while its edges have their counts
  requests_.end(request);
  sender_.drop(request);
  streams_.drop(request);
  fan_in_.drop(request);
  calls_.cancel(request.id);
  work_.drop(request);
  context_.more_to_do = true;
}

void RequestEnds::drop_all() {
  for (const auto& [id, request] : requests_.all()) {
    request->aborted = false;  // no coordinator waits for an acknowledgement of this incarnation
    if (request->is_live()) cancel(*request, Status(StatusCode::kUnavailable, "the stage lost its lease"));
  }
}

void RequestEnds::fail_all(const Status& why) {
  for (const auto& [id, request] : requests_.all()) fail(*request, why);
}

void RequestEnds::fail_worker_requests(const Status& why) {
  for (const auto& [id, request] : requests_.all()) {
    if (request->work.state == RequestWork::State::kKnown) fail(*request, why);
  }
}

void RequestEnds::fail_overdue() {
  while (LoopRequest* request = requests_.overdue(context_.now_ms - kDeadlineGraceMs)) {
    fail(*request, error(StatusCode::kDeadline, "the request's time was over {} ms ago, and it was not ended",
                         context_.now_ms - request->deadline_ms));
  }
}

void RequestEnds::fail_of_lost_peers() {
  for (const auto& [id, request] : requests_.all()) {
    if (!request->is_live()) continue;
    std::string lost = streams_.lost_sender(*request);
    if (lost.empty()) lost = sender_.lost_receiver(*request);
    if (!lost.empty()) fail(*request, error(StatusCode::kUnavailable, "stage '{}' died", lost));
  }
}

bool RequestEnds::is_over(const LoopRequest& request) const {
  if (!request.work.is_over() || calls_.is_open(request.id)) return false;
  if (!request.is_live()) return true;
  if (!request.work.resulted) return false;
  return std::all_of(request.out.edges.begin(), request.out.edges.end(), [](const auto& edge) {
    return edge.second.queue.empty() && edge.second.flushed == edge.second.sent;
  });
}

void RequestEnds::sweep() {
  for (const ReqId id : requests_.take_to_check()) {
    LoopRequest* request = requests_.find(id);
    if (request && is_over(*request)) erase(*request);
  }
}

void RequestEnds::erase(LoopRequest& request) {
  if (request.is_live()) {
    ++context_.counters.finished;
    end_span(context_, request, ok_status());
    acks_.acknowledge_all(request);  // of chunks that were taken without the worker
  }
  if (request.aborted) {
    ++context_.counters.aborted;
    notices_.add(wire::Message(wire::AbortAck{.id = request.id, .from = context_.origin()}));
  }
  const Ended how = request.aborted ? Ended::kAborted : request.is_live() ? Ended::kFinished : Ended::kFailed;
  trace::async_end("request in a stage", "stage", context_.trace_id(request.id));
  requests_.erase(request, how, context_.now_ms, targets_of(request, context_));
}

}  // namespace millrace::loop
