// What a RadixCache must know, in the plainest form: a map from a prefix to one page's facts. For tests only.
//
// A prefix is a number: the namespace, then one nibble (1..15) for each page. Every operation is spelled out page by
// page; no tree, no nodes, no order that is kept up to date.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "kv/cache_options.h"

namespace millrace::testing {

using Prefix = uint64_t;
inline Prefix shorter(Prefix prefix) { return prefix >> 4; }

class MapModel {
 public:
  struct Entry {
    bool pool = false;
    bool host = false;
    int pool_children = 0;
    int host_children = 0;
    int locks = 0;
    int hits = 0;
    int priority = 0;
    uint64_t last_use = 0;
    uint64_t created = 0;
  };
  struct Found {
    std::size_t pool = 0;
    std::size_t host = 0;  // behind those, on the host alone
  };

  MapModel(CacheOptions options, int host_capacity) : options_(options), host_capacity_(host_capacity) {}

  Found peek(const std::vector<Prefix>& path) const {
    Found found;
    for (Prefix prefix : path) {
      const auto it = entries_.find(prefix);
      if (it == entries_.end()) break;
      ++(it->second.pool ? found.pool : found.host);
    }
    return found;
  }

  Found match(const std::vector<Prefix>& path) {
    ++tick_;
    const Found found = peek(path);
    for (std::size_t i = 0; i < found.pool + found.host; ++i) entries_.at(path[i]).last_use = tick_;
    return found;
  }

  // The first `below` pages are those of the caller's lock.
  void insert(const std::vector<Prefix>& path, std::size_t below, int priority) {
    ++tick_;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto [it, is_new] = entries_.try_emplace(path[i]);
      Entry& entry = it->second;
      if (is_new) entry.created = tick_;
      entry.priority = is_new ? priority : std::max(entry.priority, priority);
      entry.last_use = tick_;
      if (i >= below) ++entry.hits;
      if (!entry.pool) set_pool(path[i], true);
    }
    back_up_wanted(path);
  }

  void count_use(const std::vector<Prefix>& path, int priority) {
    ++tick_;
    for (Prefix prefix : path) {
      Entry& entry = entries_.at(prefix);
      ++entry.hits;
      entry.priority = std::max(entry.priority, priority);
      entry.last_use = tick_;
    }
    back_up_wanted(path);
  }

  void load(const std::vector<Prefix>& path) {
    for (Prefix prefix : path) {
      if (!entries_.at(prefix).pool) set_pool(prefix, true);
    }
  }

  void lock(const std::vector<Prefix>& path, int by) {
    for (Prefix prefix : path) entries_.at(prefix).locks += by;
  }

  int evict(int count) {
    for (int freed = 0; freed < count; ++freed) {
      const std::optional<Prefix> victim = next_victim(&Entry::pool, &Entry::pool_children);
      if (!victim) return freed;
      if (host_capacity_ > 0 && options_.write_policy == WritePolicy::kWriteBack) back_up(path_to(*victim));
      set_pool(*victim, false);
    }
    return count;
  }

  // Prefixes that `dropped` selects, as far as they are unlocked.
  template <typename F>
  int drop(F dropped) {
    int freed = 0;
    std::erase_if(entries_, [&](const auto& item) {
      const bool gone = item.second.locks == 0 && dropped(item.first);
      if (gone) {
        freed += item.second.pool;
        pool_count_ -= item.second.pool;
        host_count_ -= item.second.host;
      }
      return gone;
    });
    for (auto& [prefix, entry] : entries_) entry.pool_children = entry.host_children = 0;
    for (auto& [prefix, entry] : entries_) {
      const auto parent = entries_.find(shorter(prefix));
      if (parent == entries_.end()) continue;
      parent->second.pool_children += entry.pool;
      parent->second.host_children += entry.host;
    }
    return freed;
  }

  int pool_count() const { return pool_count_; }
  int host_count() const { return host_count_; }
  int locked_count() const {
    return static_cast<int>(
        std::ranges::count_if(entries_, [](const auto& item) { return item.second.pool && item.second.locks > 0; }));
  }
  const std::map<Prefix, Entry>& entries() const { return entries_; }

 private:
  using Key = std::tuple<int64_t, int64_t>;

  Key key(const Entry& entry) const {
    const auto used = static_cast<int64_t>(entry.last_use);
    const auto created = static_cast<int64_t>(entry.created);
    switch (options_.eviction) {
      case EvictionStrategy::kLru:
        return {0, used};
      case EvictionStrategy::kLfu:
        return {entry.hits, used};
      case EvictionStrategy::kFifo:
        return {0, created};
      case EvictionStrategy::kMru:
        return {0, -used};
      case EvictionStrategy::kFilo:
        return {0, -created};
      case EvictionStrategy::kPriority:
        return {entry.priority, used};
      case EvictionStrategy::kSlru:
        return {entry.hits >= 2 ? 1 : 0, used};
    }
    return {};
  }

  // The smallest key among the unlocked pages of a tier that no other page there continues.
  std::optional<Prefix> next_victim(bool Entry::*tier, int Entry::*children) const {
    std::optional<Prefix> victim;
    Key least;
    for (const auto& [prefix, entry] : entries_) {
      if (!(entry.*tier) || entry.*children > 0 || entry.locks > 0) continue;
      if (victim && !(key(entry) < least)) continue;
      victim = prefix;
      least = key(entry);
    }
    return victim;
  }

  // A namespace number is larger than 15, so a path ends where shortening it gives no entry.
  std::vector<Prefix> path_to(Prefix prefix) const {
    std::vector<Prefix> path;
    for (; entries_.contains(prefix); prefix = shorter(prefix)) path.insert(path.begin(), prefix);
    return path;
  }

  void back_up_wanted(const std::vector<Prefix>& path) {
    if (host_capacity_ == 0 || options_.write_policy == WritePolicy::kWriteBack) return;
    std::vector<Prefix> wanted;
    for (Prefix prefix : path) {
      if (options_.write_policy == WritePolicy::kWriteThroughSelective && entries_.at(prefix).hits < 2) break;
      wanted.push_back(prefix);
    }
    back_up(wanted);
  }

  void back_up(const std::vector<Prefix>& path) {
    lock(path, 1);
    for (Prefix prefix : path) {
      if (entries_.at(prefix).host) continue;
      if (host_count_ == host_capacity_) {
        const std::optional<Prefix> victim = next_victim(&Entry::host, &Entry::host_children);
        if (!victim) break;
        set_host(*victim, false);
      }
      set_host(prefix, true);
    }
    lock(path, -1);
  }

  void set_pool(Prefix prefix, bool value) {
    entries_.at(prefix).pool = value;
    pool_count_ += value ? 1 : -1;
    if (const auto parent = entries_.find(shorter(prefix)); parent != entries_.end()) {
      parent->second.pool_children += value ? 1 : -1;
    }
    forget_if_nowhere(prefix);
  }

  void set_host(Prefix prefix, bool value) {
    entries_.at(prefix).host = value;
    host_count_ += value ? 1 : -1;
    if (const auto parent = entries_.find(shorter(prefix)); parent != entries_.end()) {
      parent->second.host_children += value ? 1 : -1;
    }
    forget_if_nowhere(prefix);
  }

  void forget_if_nowhere(Prefix prefix) {
    const Entry& entry = entries_.at(prefix);
    if (!entry.pool && !entry.host) entries_.erase(prefix);
  }

  CacheOptions options_;
  int host_capacity_;
  std::map<Prefix, Entry> entries_;
  uint64_t tick_ = 0;
  int pool_count_ = 0;
  int host_count_ = 0;
};

}  // namespace millrace::testing
