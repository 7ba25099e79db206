#include "stages/loop/work_queue.h"

#include <utility>

namespace millrace::loop {

void WorkQueue::copy_for_wait(WorkEvent& event) {
  if (!event.reservation) event.reservation = detached_.detach(event.body);
}

void WorkQueue::add(LoopRequest& request, WorkEvent event) {
  event.id = request.id;
  const bool begins = event.kind == WorkEvent::Kind::kStart || event.kind == WorkEvent::Kind::kGenerate;
  if (begins && request.trace) event.traceparent = request.trace->traceparent;
  // Always through the queue, also where the worker could take it: events of one request never overtake each other.
  request.work.waiting.push_back(std::move(event));
  if (!request.work.in_line) post_all(request);
  if (!request.work.waiting.empty()) copy_for_wait(request.work.waiting.back());
}

void WorkQueue::post_all(LoopRequest& request) {
  WorkerHost& worker = *context_.env.worker;
  request.work.in_line = false;
  // An inline worker runs inside post(), and its outputs wait in its host: so nothing here is changed under this loop.
  while (!request.work.waiting.empty()) {
    WorkEvent& event = request.work.waiting.front();
    const WorkEvent::Kind kind = event.kind;
    const auto edge = request.in.edges.find(event.from);
    const bool congested = kind == WorkEvent::Kind::kChunk && request.out.congested;
    // A worker that is behind gets copies: an event in its queue would hold a credit of the sender's relay.
    if (!congested && worker.waiting() >= kUncopiedEvents) copy_for_wait(event);
    if (congested || !worker.post(event, context_.now_ms)) {
      if (!congested) ++context_.counters.refusals;
      request.work.in_line = true;
      line_.push_back(request.id);
      return context_.retry_soon();
    }
    // `event` was moved away by post(), so its kind and edge were looked up before.
    posted(request);
    if (kind == WorkEvent::Kind::kDrop) request.work.state = RequestWork::State::kDropping;
    if (kind == WorkEvent::Kind::kChunk) chunk_posted(request, edge->first, edge->second);
    request.work.waiting.pop_front();
  }
}

bool WorkQueue::add_now(LoopRequest& request, const std::string& from, InEdge& edge, Body& delta) {
  if (!request.work.waiting.empty() || request.work.in_line || request.out.congested) return false;
  if (!context_.env.worker->post_delta(request.id, from, delta, context_.now_ms)) return false;
  posted(request);
  chunk_posted(request, from, edge);
  return true;
}

// The worker's host has taken an event.
void WorkQueue::posted(LoopRequest& request) {
  context_.more_to_do = true;
  if (request.work.state == RequestWork::State::kUnknown) request.work.state = RequestWork::State::kKnown;
}

void WorkQueue::chunk_posted(LoopRequest& request, const std::string& from, InEdge& edge) {
  ++context_.counters.chunks_in;
  ++edge.delivered;
  acks_.acknowledge_if_due(request.id, from, edge);
}

void WorkQueue::finish(LoopRequest& request) {
  request.work.resulted = true;
  drop(request);
}

void WorkQueue::on_dropped(LoopRequest& request) {
  request.work.state = RequestWork::State::kGone;
  requests_.check(request);
}

void WorkQueue::drop(LoopRequest& request) {
  // Chunks that are dropped count as delivered: the sender's window must open, or it waits for ever.
  for (const WorkEvent& event : request.work.waiting) {
    if (event.kind == WorkEvent::Kind::kChunk) ++request.in.edges.at(event.from).delivered;
  }
  request.work.waiting.clear();
  if (request.work.state == RequestWork::State::kUnknown) request.work.state = RequestWork::State::kGone;
  // Only what the worker knows is dropped there; its kDropped is the last output of the request.
  if (request.work.state == RequestWork::State::kKnown) {
    add(request, {.kind = WorkEvent::Kind::kDrop});
  }
  requests_.check(request);
}

bool WorkQueue::add_command(wire::AdminRequest command) {
  if (commands_.size() >= kMaxWaitingCommands) return false;
  commands_.push_back({.kind = WorkEvent::Kind::kAdmin, .command = std::move(command)});
  post_commands();
  return true;
}

void WorkQueue::lose_lease() {
  commands_.clear();
  // In the queue of the commands: behind those that the worker has got, before those of the next lease.
  commands_.push_back({.kind = WorkEvent::Kind::kLeaseLost});
  post_commands();
}

void WorkQueue::post_commands() {
  while (!commands_.empty()) {
    if (!context_.env.worker->post(commands_.front(), context_.now_ms)) return context_.retry_soon();
    commands_.pop_front();
  }
}

void WorkQueue::retry() {
  post_commands();
  // The old line in its order; what is refused again joins a new one, so each request is tried once.
  std::deque<ReqId> line;
  line.swap(line_);
  for (const ReqId id : line) {
    if (LoopRequest* request = requests_.find(id)) post_all(*request);
  }
}

}  // namespace millrace::loop
