// Tombstones: which requests have ended here, and how, so that late and repeated messages start nothing anew; and where
// something of a finished one has gone, for the coordinator's question (loop/request_report.h).
//
// Bounded by number (the oldest goes first) and by time. Owner: RequestTable. Thread safety: the loop's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "base/ids.h"
#include "stages/loop/limits.h"

namespace millrace::loop {

enum class Ended : uint8_t { kFinished, kFailed, kAborted };

struct Tombstone {
  using Targets = uint64_t;  // bit i: of the stage's i-th target
  Ended how = Ended::kFinished;
  Targets targets = 0;  // to which something of the request has left
};

class Tombstones {
 public:
  // Of one that is there already the time starts anew.
  void add(ReqId id, Ended how, int64_t now_ms, Tombstone::Targets targets = 0) {
    const uint64_t serial = next_serial_++;
    of_[id] = {.stone = {.how = how, .targets = targets}, .serial = serial};
    by_age_.push_back({.id = id, .serial = serial, .until_ms = now_ms + kTombstoneMs});
    while (of_.size() > kMaxTombstones || by_age_.size() > 2 * kMaxTombstones) drop_oldest();
  }
  void expire(int64_t now_ms) {
    while (!by_age_.empty() && by_age_.front().until_ms <= now_ms) drop_oldest();
  }
  // nullptr: it has not ended here, or too long ago. Valid until the next add() or expire().
  const Tombstone* find(ReqId id) const {
    const auto entry = of_.find(id);
    return entry == of_.end() ? nullptr : &entry->second.stone;
  }
  std::size_t size() const { return of_.size(); }
  int64_t due_ms() const { return by_age_.empty() ? kNoWake : by_age_.front().until_ms; }
  uint64_t forgotten() const { return forgotten_; }  // before their time

 private:
  struct Entry {
    Tombstone stone;
    uint64_t serial = 0;
  };
  struct Aged {
    ReqId id;
    uint64_t serial = 0;
    int64_t until_ms = 0;
  };
  void drop_oldest() {
    const Aged oldest = by_age_.front();
    by_age_.pop_front();
    const auto entry = of_.find(oldest.id);
    if (entry == of_.end() || entry->second.serial != oldest.serial) return;
    if (of_.size() > kMaxTombstones) ++forgotten_;
    of_.erase(entry);
  }
  std::unordered_map<ReqId, Entry> of_;
  std::deque<Aged> by_age_;
  uint64_t next_serial_ = 0;
  uint64_t forgotten_ = 0;
};

}  // namespace millrace::loop
