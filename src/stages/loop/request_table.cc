#include "stages/loop/request_table.h"

namespace millrace::loop {

LoopRequest& RequestTable::add(ReqId id, int64_t deadline_ms) {
  auto request = std::make_unique<LoopRequest>();
  request->id = id;
  request->deadline_ms = deadline_ms;
  deadlines_.emplace(deadline_ms, id);
  return *(requests_[id] = std::move(request));
}

void RequestTable::end(LoopRequest& request) {
  request.phase = LoopRequest::Phase::kEnding;
  deadlines_.erase({request.deadline_ms, request.id});
}

void RequestTable::erase(LoopRequest& request, Ended how, int64_t now_ms, Tombstone::Targets targets) {
  const ReqId id = request.id;
  deadlines_.erase({request.deadline_ms, id});
  tombstones_.add(id, how, now_ms, targets);
  requests_.erase(id);
}

LoopRequest* RequestTable::overdue(int64_t time_ms) const {
  if (deadlines_.empty() || deadlines_.begin()->first > time_ms) return nullptr;
  return find(deadlines_.begin()->second);
}

}  // namespace millrace::loop
