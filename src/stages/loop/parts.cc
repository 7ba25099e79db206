#include "stages/loop/parts.h"

namespace millrace::loop {

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
    for (const auto& [from, edge] : request->in.edges) books.held_chunks += edge.held.size();
    for (const auto& [target, edge] : request->out.edges) books.queued_items += edge.queue.size();
    books.queued_bytes += request->out.waiting_bytes;
    books.worker_events += request->work.waiting.size();
  }
  return books;
}

}  // namespace millrace::loop
