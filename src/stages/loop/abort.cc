// Ends: failures, aborts, deadlines, dead peers, and the moment when nothing of a request is left.
#include <algorithm>

#include "base/log.h"
#include "base/trace.h"
#include "stages/stage_loop.h"
#include "wire/limits.h"
#include "wire/utf8.h"

namespace millrace {

using loop::Ended;

void StageLoop::on(wire::AbortRequest&& message) {
  const auto found = requests_.find(message.id);
  if (found == requests_.end()) {
    // Unknown, not here yet, or over: what may still come of it starts nothing.
    tombstones_.add(message.id, Ended::kAborted, now_ms_);
    return notify(wire::Message(wire::AbortAck{.id = message.id, .from = origin()}));
  }
  Request& request = *found->second;
  request.aborted = true;  // acknowledged when all is over
  if (request.phase == Request::Phase::kLive) let_go(request);
}

void StageLoop::fail(Request& request, Status why) {
  if (request.phase != Request::Phase::kLive) return;
  ++counters_.failed;
  request.failed = true;
  // Everybody's clock says the same now. The coordinator's word names the limit, ours would only name this stage.
  const bool over = why.code() == StatusCode::kDeadline && now_ms_ >= request.deadline_ms;
  if (over && now_ms_ < request.deadline_ms + loop::kDeadlineGraceMs) return let_go(request);
  why = why.with_prefix(config_.self.stage);
  std::string text = wire::utf8_repair(why.message());
  text = std::string(wire::utf8_clip(text, wire::kMaxErrorBytes));
  LOG_DEBUG("request {} failed: {}", request.id.value, text);
  notify(wire::Chunk{.id = request.id, .body = wire::Failure{why.code(), text}});
  tell_streams(request, Status(why.code(), text));
  let_go(request);
}

// Receivers in the middle of a stream get the failure at once; the coordinator's abort reaches all others.
void StageLoop::tell_streams(Request& request, const Status& why) {
  for (auto& [target, edge] : request.out) {
    if (target.empty() || edge.flushed == 0 || edge.ended || !edge.to) continue;
    wire::Chunk chunk{.id = request.id, .body = wire::Failure{why.code(), why.message()}};
    const Status status = outgoing_.append({target, edge.to->replica, edge.to->incarnation}, chunk, 0);
    if (!status.ok()) LOG_DEBUG("'{}' does not get the failure: {}", target, status.to_string());
  }
}

// From here on nothing is sent, fetched or worked on; what is open ends.
void StageLoop::let_go(Request& request) {
  request.phase = Request::Phase::kEnding;
  deadlines_.erase({request.deadline_ms, request.id});
  for (auto& [target, edge] : request.out) edge.queue.clear();
  outgoing_.drop(request.id);
  for (auto& [from, stream] : request.in) stream.held.clear();
  request.payloads.clear();
  request.waiting_bytes = request.waiting_chunks = 0;
  watch_congestion(request);
  calls_.cancel(request.id);
  drop_from_worker(request);
  more_to_settle_ = true;
}

bool StageLoop::is_over(const Request& request) const {
  const bool worker_gone = request.in_worker == Request::InWorker::kGone;
  if (request.calls > 0 || !worker_gone || !request.to_worker.empty()) return false;
  if (request.phase == Request::Phase::kEnding) return true;
  if (!request.resulted) return false;
  return std::all_of(request.out.begin(), request.out.end(), [](const auto& edge) {
    return edge.second.queue.empty() && edge.second.flushed == edge.second.sent;
  });
}

void StageLoop::sweep() {
  std::vector<ReqId> ids;
  ids.swap(to_sweep_);
  for (const ReqId id : ids) {
    const auto found = requests_.find(id);
    if (found != requests_.end() && is_over(*found->second)) bury(*found->second);
  }
}

void StageLoop::bury(Request& request) {
  const ReqId id = request.id;
  if (request.phase == Request::Phase::kLive) {
    ++counters_.finished;
    deadlines_.erase({request.deadline_ms, id});
    // The last chunks were taken without the worker; their sender still waits for the acknowledgement.
    for (auto& [from, edge] : request.in) {
      if (edge.acked < edge.taken()) acknowledge(id, from, edge.source, edge.taken(), &edge);
    }
  }
  if (request.aborted) {
    ++counters_.aborted;
    notify(wire::Message(wire::AbortAck{.id = id, .from = origin()}));
  }
  const Ended how = request.aborted ? Ended::kAborted : request.failed ? Ended::kFailed : Ended::kFinished;
  tombstones_.add(id, request.phase == Request::Phase::kLive || how != Ended::kFinished ? how : Ended::kFailed,
                  now_ms_);
  trace::async_end("request in a stage", "stage", trace_id(id));
  requests_.erase(id);
}

// What the time has come for.
void StageLoop::expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first + loop::kDeadlineGraceMs <= now_ms_) {
    Request& request = *requests_.at(deadlines_.begin()->second);
    fail(request, error(StatusCode::kDeadline, "the request's time was over {} ms ago, and nobody has ended it",
                        now_ms_ - request.deadline_ms));
  }
  tombstones_.expire(now_ms_);
  while (!parked_.empty() && parked_.front().until_ms <= now_ms_) {
    parked_bytes_ -= parked_.front().size_bytes;
    parked_.pop_front();
    ++counters_.stale;
  }
}

namespace {

// The receiver has said that it has all of it.
bool is_settled(const loop::LoopRequest& request, const loop::OutEdge& edge) {
  return request.resulted && edge.queue.empty() && edge.acked == edge.sent;
}

}  // namespace

// A new table: requests that are bound to a replica that is gone fail now.
void StageLoop::watch_peers() {
  for (const auto& [id, request] : requests_) {
    if (request->phase != Request::Phase::kLive) continue;
    std::string lost;
    for (const auto& [target, edge] : request->out) {
      if (!edge.to || is_settled(*request, edge)) continue;
      if (book_.standing(target, edge.to->replica, edge.to->incarnation) == loop::Standing::kGone) lost = target;
    }
    for (const auto& [from, edge] : request->in) {
      if (!edge.streams || edge.total) continue;  // all of it is on its way
      const loop::EdgeEnd& source = edge.source;
      if (book_.standing(from, source.replica, source.incarnation) == loop::Standing::kGone) lost = from;
    }
    if (!lost.empty()) fail(*request, error(StatusCode::kUnavailable, "stage '{}' died", lost));
  }
}

}  // namespace millrace
