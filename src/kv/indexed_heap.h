// IndexedHeap: a min-heap whose items know their index, so that one whose key changes is moved in O(log n) instead of
// being looked for. Four children to an item: half as many levels as with two, and each level that an item goes through
// costs a write to its own, distant memory.
//
// IndexOf{}(item) is a reference to the item's index (int32_t), kNotInHeap outside of the heap; the heap alone writes
// it. An item stands in at most one heap for each IndexOf. Keys are kept beside the items: code that changes what a
// key is made of calls update().
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
  Item top() const {
    CHECK(!empty());
    return entries_.front().item;
  }

  void push(Item item, Key key) {
    CHECK(!contains(item));
    entries_.push_back({key, item});
    sift_up(entries_.size() - 1);
  }

  void erase(Item item) {
    const std::size_t index = checked_index(item);
    index_of(item) = kNotInHeap;
    const Entry last = entries_.back();
    entries_.pop_back();
    if (index == entries_.size()) return;
    entries_[index] = last;
    settle(index);
  }

  void update(Item item, Key key) {
    const std::size_t index = checked_index(item);
    entries_[index].key = key;
    settle(index);
  }

  // How often two keys were compared since the beginning: what the tests count instead of time.
  uint64_t comparisons() const { return comparisons_; }

  // Every item knows its index, its key is `key_of(item)`, and no parent is larger than its child.
  template <typename KeyOf>
  Status verify(KeyOf key_of) const {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      if (index_of(entry.item) != static_cast<int32_t>(i)) {
        return internal_error("the item at index {} of the heap has index {}", i, index_of(entry.item));
      }
      if (entry.key != key_of(entry.item)) return internal_error("the key at index {} of the heap is stale", i);
      if (i > 0 && entry.key < entries_[parent_of(i)].key) return internal_error("index {} of the heap is too low", i);
    }
    return ok_status();
  }

 private:
  struct Entry {
    Key key;
    Item item;
  };

  static std::size_t parent_of(std::size_t index) { return (index - 1) / kHeapChildren; }
  static int32_t& index_of(Item item) { return IndexOf{}(item); }

  std::size_t checked_index(Item item) const {
    CHECK(contains(item));
    return static_cast<std::size_t>(index_of(item));
  }

  bool less(const Key& a, const Key& b) {
    ++comparisons_;
    return a < b;
  }

  void settle(std::size_t index) {
    if (index > 0 && less(entries_[index].key, entries_[parent_of(index)].key)) {
      sift_up(index);
    } else {
      sift_down(index);
    }
  }

  void put(std::size_t index, const Entry& entry) {
    entries_[index] = entry;
    index_of(entry.item) = static_cast<int32_t>(index);
  }

  void sift_up(std::size_t index) {
    const Entry entry = entries_[index];
    while (index > 0) {
      const std::size_t parent = parent_of(index);
      if (!less(entry.key, entries_[parent].key)) break;
      put(index, entries_[parent]);
      index = parent;
    }
    put(index, entry);
  }

  void sift_down(std::size_t index) {
    const Entry entry = entries_[index];
    for (std::size_t first = kHeapChildren * index + 1; first < entries_.size(); first = kHeapChildren * index + 1) {
      std::size_t child = first;
      const std::size_t end = std::min(first + kHeapChildren, entries_.size());
      for (std::size_t other = first + 1; other < end; ++other) {
        if (less(entries_[other].key, entries_[child].key)) child = other;
      }
      if (!less(entries_[child].key, entry.key)) break;
      put(index, entries_[child]);
      index = child;
    }
    put(index, entry);
  }

  std::vector<Entry> entries_;
  uint64_t comparisons_ = 0;
};

}  // namespace millrace
