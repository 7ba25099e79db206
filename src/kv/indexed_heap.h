// IndexedHeap: a min-heap whose items know their place, so that one whose key changes is moved in O(log n) instead of
// being looked for. Four children to an item: half as many levels as with two, and each level that an item goes through
// costs a write to its own, distant memory.
//
// IndexOf{}(item) is a reference to the item's place (int32_t), kNotInHeap outside of the heap; the heap alone writes
// it. An item stands in at most one heap for each IndexOf. Keys are kept beside the items: whoever changes what a key
// is made of calls update().
//
// Owner: one object, one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr int32_t kNotInHeap = -1;
inline constexpr std::size_t kHeapChildren = 4;

template <typename Key, typename Item, typename IndexOf>
class IndexedHeap {
 public:
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  bool contains(Item item) const { return index_of(item) != kNotInHeap; }
  Item top() const { return entries_.front().item; }

  void push(Item item, Key key) {
    CHECK(!contains(item));
    entries_.push_back({key, item});
    sift_up(entries_.size() - 1);
  }

  void erase(Item item) {
    const std::size_t place = checked_place(item);
    index_of(item) = kNotInHeap;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (place == entries_.size()) return;
    entries_[place] = last;
    settle(place);
  }

  void update(Item item, Key key) {
    const std::size_t place = checked_place(item);
    entries_[place].key = key;
    settle(place);
  }

  // How often two keys were compared since the beginning: what the tests count instead of time.
  uint64_t comparisons() const { return comparisons_; }

  // Every item knows its place, its key is `key_of(item)`, and no parent is larger than its child.
  template <typename KeyOf>
  Status verify(KeyOf key_of) const {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      if (index_of(entry.item) != static_cast<int32_t>(i)) {
        return internal_error("the item at place {} of the heap says {}", i, index_of(entry.item));
      }
      if (entry.key != key_of(entry.item)) return internal_error("the key at place {} of the heap is stale", i);
      if (i > 0 && entry.key < entries_[parent_of(i)].key) return internal_error("place {} of the heap is too low", i);
    }
    return ok_status();
  }

 private:
  struct Entry {
    Key key;
    Item item;
  };

  static std::size_t parent_of(std::size_t place) { return (place - 1) / kHeapChildren; }
  static int32_t& index_of(Item item) { return IndexOf{}(item); }

  std::size_t checked_place(Item item) const {
    CHECK(contains(item));
    return static_cast<std::size_t>(index_of(item));
  }

  bool less(const Key& a, const Key& b) {
    ++comparisons_;
    return a < b;
  }

  void settle(std::size_t place) {
    if (place > 0 && less(entries_[place].key, entries_[parent_of(place)].key)) {
      sift_up(place);
    } else {
      sift_down(place);
    }
  }

  void put(std::size_t place, const Entry& entry) {
    entries_[place] = entry;
    index_of(entry.item) = static_cast<int32_t>(place);
  }

  void sift_up(std::size_t place) {
    const Entry entry = entries_[place];
    while (place > 0) {
      const std::size_t parent = parent_of(place);
      if (!less(entry.key, entries_[parent].key)) break;
      put(place, entries_[parent]);
      place = parent;
    }
    put(place, entry);
  }

  void sift_down(std::size_t place) {
    const Entry entry = entries_[place];
    for (std::size_t first = kHeapChildren * place + 1; first < entries_.size(); first = kHeapChildren * place + 1) {
      std::size_t child = first;
      const std::size_t end = std::min(first + kHeapChildren, entries_.size());
      for (std::size_t other = first + 1; other < end; ++other) {
        if (less(entries_[other].key, entries_[child].key)) child = other;
      }
      if (!less(entries_[child].key, entry.key)) break;
      put(place, entries_[child]);
      place = child;
    }
    put(place, entry);
  }

  std::vector<Entry> entries_;
  uint64_t comparisons_ = 0;
};

}  // namespace millrace
