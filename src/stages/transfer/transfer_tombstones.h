// TransferTombstones: ids of transfers that have ended, so that a late or repeated message begins nothing anew.
// Bounded by time and by number. Owner: one end of transfers. Thread safety: none.
#pragma once

#include <deque>
#include <set>
#include <utility>

#include "base/ids.h"
#include "stages/transfer/limits.h"

namespace millrace::transfer {

class TransferTombstones {
 public:
  void add(const TransferId& id, int64_t now_ms) {
    if (!ids_.insert(id).second) return;
    by_age_.emplace_back(now_ms + kTombstoneMs, id);
    while (by_age_.size() > kMaxTombstones) drop_oldest();
  }
  void expire(int64_t now_ms) {
    while (!by_age_.empty() && by_age_.front().first <= now_ms) drop_oldest();
  }
  bool contains(const TransferId& id) const { return ids_.contains(id); }
  std::size_t size() const { return ids_.size(); }

 private:
  void drop_oldest() {
    ids_.erase(by_age_.front().second);
    by_age_.pop_front();
  }
  std::set<TransferId> ids_;
  std::deque<std::pair<int64_t, TransferId>> by_age_;
};

}  // namespace millrace::transfer
