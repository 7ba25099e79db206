// RequestTable: the requests that a stage loop has, live ones and ending ones, with their deadlines, and the tombstones
// of those that have ended here.
//
// Invariants: a live request has exactly one deadline entry, an ending one none; an erased one leaves a tombstone.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stages/loop/request.h"
#include "stages/loop/tombstones.h"

namespace millrace::loop {

class RequestTable {
 public:
  using Map = std::unordered_map<ReqId, std::unique_ptr<LoopRequest>>;

  LoopRequest* find(ReqId id) const {
    const auto found = requests_.find(id);
    return found == requests_.end() ? nullptr : found->second.get();
  }
  LoopRequest* live(ReqId id) const {
    LoopRequest* request = find(id);
    return request && request->is_live() ? request : nullptr;
  }
  const Map& all() const { return requests_; }
  bool empty() const { return requests_.empty(); }
  std::size_t size() const { return requests_.size(); }

  LoopRequest& add(ReqId id, int64_t deadline_ms);
  // From live to ending.
  void end(LoopRequest& request);
  void erase(LoopRequest& request, Ended how, int64_t now_ms, Tombstone::Targets targets);
  // A live one whose deadline is at or before this time. nullptr: none.
  LoopRequest* overdue(int64_t time_ms) const;
  // kNoWake: there is none.
  int64_t next_deadline_ms() const { return deadlines_.empty() ? kNoWake : deadlines_.begin()->first; }
  std::size_t deadlines() const { return deadlines_.size(); }

  // Something has happened after which it may be over.
  void check(const LoopRequest& request) {
    if (request.work.resulted || !request.is_live()) to_check_.push_back(request.id);
  }
  std::vector<ReqId> take_to_check() { return std::exchange(to_check_, {}); }

  Tombstones& tombstones() { return tombstones_; }
  const Tombstones& tombstones() const { return tombstones_; }

 private:
  Map requests_;                                   // at most spec.resources.max_requests
  std::set<std::pair<int64_t, ReqId>> deadlines_;  // of live requests
  std::vector<ReqId> to_check_;
  Tombstones tombstones_;
};

}  // namespace millrace::loop
