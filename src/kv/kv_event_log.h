// KvEventLog: the events of one cache that no reader took yet, and the digests that name its pages in them.
//
// Invariants: at most kMaxKvEvents events; once one was dropped, all that follow are, until the next take(), so that
// what was kept has no hole in it. Where events are off, nothing is noted and no node has digests.
//
// Owner: one RadixCache. Thread safety: none.
#pragma once

#include <cstdint>

#include "kv/kv_event.h"
#include "kv/radix_node.h"

namespace millrace {

class KvEventLog {
 public:
  KvEventLog(bool enabled, int32_t page_size) : enabled_(enabled), page_size_(page_size) {}

  bool enabled() const { return enabled_; }

  // Computes the digests of a new node: of a root's extra key, or of its pages.
  void add_digests(RadixNode* node) const;

  // The pages of `node` from `first` on are in `medium` now: one event each.
  void note_stored(const RadixNode& node, KvMedium medium, int32_t first);
  // The pages of `node` from `first` on are about to leave `medium`.
  void note_removed(const RadixNode& node, KvMedium medium, int32_t first);
  void note_cleared();
  // Notes no removals: one kCleared follows for all of them.
  void mute_removals(bool muted) { muted_ = muted; }

  KvEvents take();
  // The events that no reader took from the log that this one replaces, then kCleared. Before any event of this one.
  void continue_from(KvEvents before);

 private:
  void note(KvEvent event);

  const bool enabled_;
  const int32_t page_size_;
  bool muted_ = false;
  KvEvents events_;
};

}  // namespace millrace
