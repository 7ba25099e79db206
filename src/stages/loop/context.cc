#include "stages/loop/context.h"

namespace millrace::loop {

// The lease decides how long a coordinator may be away: for a batch, one that is unavailable has no capacity.
Status LoopContext::send(const Receiver& to, wire::Message& message) {
  if (auto* chunks = std::get_if<wire::ChunkBatch>(&message)) chunks->from = origin();
  if (auto* acks = std::get_if<wire::AckBatch>(&message)) acks->from = origin();
  Status status;
  if (to.stage.empty()) {
    status = env.coordinator->send(message);
    if (status.code() == StatusCode::kUnavailable) status = Status(StatusCode::kResourceExhausted, status.message());
  } else {
    const wire::Peer* peer = book.find(to.stage, to.replica);
    if (!peer || peer->incarnation != to.incarnation) {
      return error(StatusCode::kUnavailable, "replica {} is not in the table of peers", to.replica);
    }
    ASSIGN_OR_RETURN(Outbox * outbox, book.outbox(*peer));
    status = outbox->send(message);
  }
  if (is_refused_for_now(status)) ++counters.refusals;
  return status;
}

}  // namespace millrace::loop
