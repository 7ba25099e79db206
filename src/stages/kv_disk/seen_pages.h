// SeenPages: which pages of prompts were used before, the newest kMaxSeenPages of them. By 64 bits of their digests:
// what is found by mistake costs a page on disk and no answer.
//
// Owner: SavedPrefixes. Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_set>

#include "kv/block_hash.h"
#include "stages/kv_disk/limits.h"

namespace millrace::kv_disk {

class SeenPages {
 public:
  // Whether it was used before; now it was.
  bool use(const BlockDigest& digest) {
    const int64_t key = short_hash(digest);
    if (!seen_.insert(key).second) return true;
    by_age_.push_back(key);
    if (by_age_.size() > kMaxSeenPages) {
      seen_.erase(by_age_.front());
      by_age_.pop_front();
    }
    return false;
  }
  bool contains(const BlockDigest& digest) const { return seen_.contains(short_hash(digest)); }
  void clear() {
    seen_.clear();
    by_age_.clear();
  }

 private:
  std::unordered_set<int64_t> seen_;
  std::deque<int64_t> by_age_;  // the oldest first
};

}  // namespace millrace::kv_disk
