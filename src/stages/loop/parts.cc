#include "stages/loop/parts.h"

namespace millrace::loop {

// The lease decides how long a coordinator may be away: for a batch, one that is unavailable has no capacity.
Status send_batch(LoopContext& context, const Outgoing::Receiver& to, wire::Message& message) {
  if (auto* chunks = std::get_if<wire::ChunkBatch>(&message)) chunks->from = context.origin();
  if (auto* acks = std::get_if<wire::AckBatch>(&message)) acks->from = context.origin();
  Status status;
  if (to.stage.empty()) {
    status = context.env.coordinator->send(message);
    if (status.code() == StatusCode::kUnavailable) status = Status(StatusCode::kResourceExhausted, status.message());
  } else {
    const wire::Peer* peer = context.book.find(to.stage, to.replica);
    if (!peer || peer->incarnation != to.incarnation) {
      return error(StatusCode::kUnavailable, "replica {} is not in the table of peers", to.replica);
    }
    ASSIGN_OR_RETURN(Outbox * outbox, context.book.outbox(*peer));
    status = outbox->send(message);
  }
  if (is_refused_for_now(status)) ++context.counters.refusals;
  return status;
}

StageLoopBooks StageLoopParts::books() const {
  StageLoopBooks books;
  books.requests = requests.size();
  books.puts = calls.open_puts();
  books.gets = calls.open_gets();
  books.drains = fetches.drains();
  books.parked = gate.parked();
  books.notices = notices.size();
  books.lists = sender.waiting_edges() + fetches.waiting() + work.waiting_requests() + requests.deadlines();
  books.queued_items = outgoing.chunks();
  books.tombstones = requests.tombstones().size();
  for (const auto& [id, request] : requests.all()) {
    if (!request->is_live()) ++books.ending;
    for (const auto& [from, edge] : request->in) books.held_chunks += edge.held.size();
    for (const auto& [target, edge] : request->out) books.queued_items += edge.queue.size();
    books.queued_bytes += request->waiting_bytes;
    books.worker_events += request->to_worker.size();
  }
  return books;
}

}  // namespace millrace::loop
