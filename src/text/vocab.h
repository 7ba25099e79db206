// Vocab: token texts by id and ids by text. The strings lie in one block; the index is one flat hash table.
//
// Built by one thread, then immutable and shared. Ids are 0 .. size()-1 with holes allowed; texts are unique.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

class Vocab {
 public:
  static constexpr int32_t kNone = -1;

  void reserve(size_t tokens, size_t bytes);
  // Errors: kInvalidArgument when the text or the id is taken already, or a limit of tokenizer.h is passed.
  Status add(std::string_view text, int64_t id);

  int32_t find(std::string_view text) const;  // the id, or kNone
  std::string_view text(int32_t id) const;    // empty for holes and outside
  bool has(int32_t id) const { return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].present; }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }  // the highest id + 1
  size_t count() const { return count_; }                                 // without the holes

 private:
  struct Entry {
    uint32_t begin = 0;
    uint32_t size : 31 = 0;
    uint32_t present : 1 = 0;
  };
  struct Slot {
    uint32_t tag = 0;  // high bits of the hash: most misses end without touching the text
    int32_t id = kNone;
  };

  std::string_view view(const Entry& entry) const { return std::string_view(bytes_).substr(entry.begin, entry.size); }
  void insert(uint64_t hash, int32_t id);
  void rehash(size_t slots);

  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t count_ = 0;
};

}  // namespace millrace
