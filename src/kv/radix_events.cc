// What the cache tells routers: the digests of its pages, and the events.
#include <utility>

#include "kv/radix_cache.h"

namespace millrace {

namespace {

const CacheNamespace& space_of(const RadixNode& node) {
  const RadixNode* root = &node;
  while (!root->is_root()) root = root->parent;
  return *root->space;
}

}  // namespace

// The digests of a new node's pages. Those of the path above are there: events are on from the beginning or never.
void RadixCache::hash_pages(RadixNode* node) {
  const BlockDigest* parent = node->parent->digests.empty() ? nullptr : &node->parent->digests.back();
  node->digests.reserve(static_cast<std::size_t>(length(*node)));
  for (int32_t page = 0; page < length(*node); ++page) {
    node->digests.push_back(chain_digest(parent, block(*node, page)));
    parent = &node->digests.back();
  }
}

// The pages of `node` from `first` on are in `medium` now: one event each.
void RadixCache::note_stored(const RadixNode& node, KvMedium medium, int32_t first) {
  if (!options_.events) return;
  const auto count = static_cast<int32_t>((medium == KvMedium::kPool ? node.pages : node.host_pages).size());
  const CacheNamespace& space = space_of(node);
  for (int32_t page = first; page < count; ++page) {
    KvEvent event;
    event.kind = KvEventKind::kStored;
    event.medium = medium;
    event.hashes = {short_hash(node.digests[static_cast<std::size_t>(page)])};
    if (page > 0) {
      event.parent = short_hash(node.digests[static_cast<std::size_t>(page - 1)]);
    } else if (!node.parent->is_root()) {
      event.parent = short_hash(node.parent->digests.back());
    }
    const auto tokens = block(node, page);
    event.tokens.assign(tokens.begin(), tokens.end());
    event.block_size = page_size_;
    event.extra_key = space.extra_key;
    event.weight_version = space.weight_version;
    note(std::move(event));
  }
}

// The pages of `node` from `first` on are about to leave `medium`.
void RadixCache::note_removed(const RadixNode& node, KvMedium medium, int32_t first) {
  if (!options_.events || muted_) return;
  const auto count = static_cast<int32_t>((medium == KvMedium::kPool ? node.pages : node.host_pages).size());
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

void RadixCache::note_cleared() {
  if (!options_.events) return;
  KvEvent event;
  event.kind = KvEventKind::kCleared;
  note(std::move(event));
}

// Once one was dropped, all that follow are, until somebody takes them: what was kept has no hole in it.
void RadixCache::note(KvEvent event) {
  if (events_.dropped > 0 || events_.events.size() >= kMaxKvEvents) {
    ++events_.dropped;
    return;
  }
  events_.events.push_back(std::move(event));
}

KvEvents RadixCache::take_events() { return std::exchange(events_, {}); }

void RadixCache::continue_events(KvEvents before) {
  CHECK(events_.events.empty() && node_count() == 0);
  events_ = std::move(before);
  note_cleared();
}

}  // namespace millrace
