#include "kv/kv_event_log.h"

#include <utility>

#include "base/status.h"
#include "kv/block_hash.h"

namespace millrace {

namespace {

// Roots alone know their namespace: O(depth) for each node that is noted.
const CacheNamespace& space_of(const RadixNode& node) {
  const RadixNode* root = &node;
  while (!root->is_root()) root = root->parent;
  return *root->space;
}

}  // namespace

// The digests of the path above are there: events are on from the beginning or never.
void KvEventLog::add_digests(RadixNode* node) const {
  CHECK(node->digests.empty());
  if (!enabled_) return;
  if (node->is_root()) {
    if (!node->space->extra_key.empty()) node->digests = {text_digest(node->space->extra_key)};
    return;
  }
  // The chain of a prompt: the digest of a page covers all tokens before it. A root's extra key is its first link, so
  // that equal tokens under different keys have different names; without a key the first page has no parent.
  const BlockDigest* parent = node->parent->digests.empty() ? nullptr : &node->parent->digests.back();
  const auto pages = static_cast<int32_t>(node->tokens.size()) / page_size_;
  node->digests.reserve(static_cast<std::size_t>(pages));
  for (int32_t page = 0; page < pages; ++page) {
    node->digests.push_back(chain_digest(parent, page_tokens(*node, page, page_size_)));
    parent = &node->digests.back();
  }
}

void KvEventLog::note_stored(const RadixNode& node, KvMedium medium, int32_t first) {
  if (!enabled_) return;
  const auto count = static_cast<int32_t>(node.pages_in(medium).size());
  CHECK(static_cast<std::size_t>(count) <= node.digests.size());
  const CacheNamespace& space = space_of(node);
  // One event for each page, with the page before it as its parent.
  for (int32_t page = first; page < count; ++page) {
    KvEvent event;
    event.kind = KvEventKind::kStored;
    event.medium = medium;
    event.hashes = {short_hash(node.digests[static_cast<std::size_t>(page)])};
    if (page > 0) {
      event.parent = short_hash(node.digests[static_cast<std::size_t>(page - 1)]);
      // Behind a root there is no parent in the event: the key of the root is a field by itself.
    } else if (!node.parent->is_root()) {
      event.parent = short_hash(node.parent->digests.back());
    }
    const auto tokens = page_tokens(node, page, page_size_);
    event.tokens.assign(tokens.begin(), tokens.end());
    event.block_size = page_size_;
    event.extra_key = space.extra_key;
    event.weight_version = space.weight_version;
    note(std::move(event));
  }
}

// Called before the pages leave, while the node still has their digests. One event for all of them: there is no parent
// to name.
void KvEventLog::note_removed(const RadixNode& node, KvMedium medium, int32_t first) {
  if (!enabled_ || muted_) return;
  const auto count = static_cast<int32_t>(node.pages_in(medium).size());
  CHECK(static_cast<std::size_t>(count) <= node.digests.size());
  const CacheNamespace& space = space_of(node);
  KvEvent event;
  event.kind = KvEventKind::kRemoved;
  event.medium = medium;
  for (int32_t page = first; page < count; ++page) {
    event.hashes.push_back(short_hash(node.digests[static_cast<std::size_t>(page)]));
  }
  event.block_size = page_size_;
  event.extra_key = space.extra_key;
  event.weight_version = space.weight_version;
  note(std::move(event));
}

// Also while removals are muted: this is the event that stands for them.
void KvEventLog::note_cleared() {
  if (!enabled_) return;
  KvEvent event;
  event.kind = KvEventKind::kCleared;
  note(std::move(event));
}

void KvEventLog::note(KvEvent event) {
  // A reader that missed one event cannot apply the next ones, so all of them are dropped until it takes what there is
  // and learns of the gap from `dropped`.
  if (events_.dropped > 0 || events_.events.size() >= kMaxKvEvents) {
    ++events_.dropped;
    return;
  }
  events_.events.push_back(std::move(event));
}

KvEvents KvEventLog::take() { return std::exchange(events_, {}); }

void KvEventLog::continue_from(KvEvents before) {
  // Those of the old cache come first, then the mark that its pages are gone.
  CHECK(events_.events.empty());
  events_ = std::move(before);
  note_cleared();
}

}  // namespace millrace
