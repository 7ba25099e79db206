// ChildMap: the children of a radix node by the hash of their first page. Flat, open addressing, linear probing: a look
// into a node with thousands of children costs one distant read, and a node without any costs no memory.
//
// Several children may have the same hash; find() asks the caller which one is meant. Hashes are taken to be random in
// their low bits (kv/block_hash.h); others are slow, and right.
//
// Owner: one node. Thread safety: none. Inserting and erasing end every iteration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace {

struct RadixNode;

class ChildMap {
 public:
  struct Slot {
    uint64_t hash = 0;
    RadixNode* child = nullptr;  // nullptr: free
  };

  // Goes over the slots that are taken, in no order that means anything.
  class Iterator {
   public:
    Iterator(const Slot* at, const Slot* end) : at_(at), end_(end) { skip_free(); }
    const Slot& operator*() const { return *at_; }
    Iterator& operator++() {
      ++at_;
      skip_free();
      return *this;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    void skip_free() {
      while (at_ != end_ && at_->child == nullptr) ++at_;
    }
    const Slot* at_;
    const Slot* end_;
  };

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  Iterator begin() const { return {slots_.data(), slots_.data() + slots_.size()}; }
  Iterator end() const { return {slots_.data() + slots_.size(), slots_.data() + slots_.size()}; }

  // The child with this hash of which `is_it(child)` is true, or nullptr.
  template <typename IsIt>
  RadixNode* find(uint64_t hash, IsIt is_it) const {
    if (empty()) return nullptr;
    for (std::size_t at = home(hash); slots_[at].child != nullptr; at = next(at)) {
      if (slots_[at].hash == hash && is_it(*slots_[at].child)) return slots_[at].child;
    }
    return nullptr;
  }

  void insert(uint64_t hash, RadixNode* child) {
    CHECK(child != nullptr);
    if ((size_ + 1) * 4 > slots_.size() * 3) grow();
    put({hash, child});
    ++size_;
  }

  // Puts `with` into the slot of `child`.
  void replace(uint64_t hash, const RadixNode* child, RadixNode* with) { slots_[slot_of(hash, child)].child = with; }

  // A child behind the gap, in a run of taken slots, moves up if that brings it nearer to its home slot: so no search
  // ends too early, and nothing is left behind in the free slots.
  void erase(uint64_t hash, const RadixNode* child) {
    std::size_t gap = slot_of(hash, child);
    for (std::size_t at = next(gap); slots_[at].child != nullptr; at = next(at)) {
      const std::size_t mask = slots_.size() - 1;
      const std::size_t from_home = (at - home(slots_[at].hash)) & mask;
      if (from_home < ((at - gap) & mask)) continue;
      slots_[gap] = slots_[at];
      gap = at;
    }
    slots_[gap] = {};
    --size_;
  }

 private:
  static constexpr std::size_t kFirstSlots = 2;

  std::size_t home(uint64_t hash) const { return static_cast<std::size_t>(hash) & (slots_.size() - 1); }
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

  std::size_t slot_of(uint64_t hash, const RadixNode* child) const {
    CHECK(!empty());
    std::size_t at = home(hash);
    while (slots_[at].child != child) {
      CHECK(slots_[at].child != nullptr);  // it is not here
      at = next(at);
    }
    return at;
  }

  void put(const Slot& slot) {
    std::size_t at = home(slot.hash);
    while (slots_[at].child != nullptr) at = next(at);
    slots_[at] = slot;
  }

  void grow() {
    const std::vector<Slot> old =
        std::exchange(slots_, std::vector<Slot>(slots_.empty() ? kFirstSlots : slots_.size() * 2));
    for (const Slot& slot : old) {
      if (slot.child != nullptr) put(slot);
    }
  }

  std::vector<Slot> slots_;  // a power of two, or none; at most three quarters taken
  std::size_t size_ = 0;
};

}  // namespace millrace
