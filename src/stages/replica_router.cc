#include "stages/replica_router.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace millrace {
namespace {

constexpr std::array<std::pair<const char*, ReplicaPolicy>, 4> kNames = {{
    {"round_robin", ReplicaPolicy::kRoundRobin},
    {"least_requests", ReplicaPolicy::kLeastRequests},
    {"least_tokens", ReplicaPolicy::kLeastTokens},
    {"prefix_aware", ReplicaPolicy::kPrefixAware},
}};

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014). A hash that collides costs a worse choice and nothing else.
uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t x = hash + 0x9e3779b97f4a7c15ull + value;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

Result<ReplicaPolicy> parse_replica_policy(std::string_view name) {
  for (const auto& [known, policy] : kNames) {
    if (name == known) return policy;
  }
  return invalid_argument(
      "the data-parallel policy is '{}'; wanted round_robin, least_requests, least_tokens or "
      "prefix_aware",
      name);
}

const char* replica_policy_name(ReplicaPolicy policy) {
  for (const auto& [name, known] : kNames) {
    if (policy == known) return name;
  }
  return "?";
}

ReplicaRouter::Prefix ReplicaRouter::prefix_of(std::span<const int32_t> prompt, std::string_view extra_key) {
  uint64_t hash = extra_key.size();
  for (char c : extra_key) hash = mix(hash, static_cast<unsigned char>(c));
  Prefix out;
  const std::size_t pages = std::min(prompt.size() / kRouterPageTokens, kMaxRouterPagesPerPrompt);
  out.reserve(pages);
  for (std::size_t page = 0; page < pages; ++page) {
    for (int32_t token : prompt.subspan(page * kRouterPageTokens, kRouterPageTokens)) {
      hash = mix(hash, static_cast<uint32_t>(token));
    }
    out.push_back(hash);
  }
  return out;
}

ReplicaRouter::ReplicaRouter(int replicas, ReplicaPolicy policy, std::size_t max_pages)
    : policy_(policy), max_pages_(max_pages) {
  CHECK(replicas >= 1 && replicas <= kMaxReplicas);
  loads_.resize(static_cast<std::size_t>(replicas));
}

// The first of those that serve, from the one whose turn it is on, that no other is better than.
template <typename Better>
int ReplicaRouter::best(const std::vector<bool>& serves, Better better) {
  const int count = static_cast<int>(loads_.size());
  int found = -1;
  for (int i = 0; i < count; ++i) {
    const int replica = (next_ + i) % count;
    if (!serves[static_cast<std::size_t>(replica)]) continue;
    if (found < 0 || better(replica, found)) found = replica;
  }
  if (found >= 0) next_ = (found + 1) % count;
  return found;
}

bool ReplicaRouter::imbalanced(const std::vector<bool>& serves) const {
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    if (!serves[i]) continue;
    least = std::min(least, loads_[i].requests);
    most = std::max(most, loads_[i].requests);
  }
  return most - least > kBalanceAbs && static_cast<double>(most) > kBalanceRel * static_cast<double>(least);
}

// How many pages of the prompt, from its begin on, each replica was given.
std::vector<std::size_t> ReplicaRouter::matched_pages(const Prefix& prefix) const {
  std::vector<std::size_t> out(loads_.size(), 0);
  uint64_t still = loads_.size() < 64 ? (uint64_t{1} << loads_.size()) - 1 : ~uint64_t{0};
  for (uint64_t hash : prefix) {
    const auto found = index_.find(hash);
    still &= found == index_.end() ? 0 : found->second->replicas;
    if (still == 0) break;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += (still >> i) & 1;
  }
  return out;
}

std::optional<int> ReplicaRouter::choose(const Prefix& prefix, const std::vector<bool>& serves) {
  const auto fewer_requests = [this](int a, int b) {
    return std::pair(load(a).requests, load(a).tokens) < std::pair(load(b).requests, load(b).tokens);
  };
  const auto fewer_tokens = [this](int a, int b) {
    return std::pair(load(a).tokens, load(a).requests) < std::pair(load(b).tokens, load(b).requests);
  };
  int chosen = -1;
  switch (policy_) {
    case ReplicaPolicy::kRoundRobin:
      chosen = best(serves, [](int, int) { return false; });
      break;
    case ReplicaPolicy::kLeastRequests:
      chosen = best(serves, fewer_requests);
      break;
    case ReplicaPolicy::kLeastTokens:
      chosen = best(serves, fewer_tokens);
      break;
    case ReplicaPolicy::kPrefixAware: {
      std::vector<std::size_t> matched = matched_pages(prefix);
      const auto worth = [&](std::size_t pages) {
        return static_cast<double>(pages) > kCacheThreshold * static_cast<double>(prefix.size()) ? pages : 0;
      };
      for (std::size_t& pages : matched) pages = worth(pages);
      if (imbalanced(serves)) std::fill(matched.begin(), matched.end(), 0);
      chosen = best(serves, [&](int a, int b) {
        const std::size_t pages_a = matched[static_cast<std::size_t>(a)],
                          pages_b = matched[static_cast<std::size_t>(b)];
        return pages_a != pages_b ? pages_a > pages_b : fewer_requests(a, b);
      });
      break;
    }
  }
  return chosen < 0 ? std::nullopt : std::optional(chosen);
}

// From the last page to the first, so that a page is always used more recently than those that follow it, and what is
// forgotten first is the end of a prompt.
void ReplicaRouter::begin(int replica, const Prefix& prefix, int64_t tokens) {
  at(replica).requests += 1;
  at(replica).tokens += tokens;
  if (!wants_prefix()) return;
  for (auto hash = prefix.rbegin(); hash != prefix.rend(); ++hash) {
    auto found = index_.find(*hash);
    if (found == index_.end()) {
      pages_.push_front({.hash = *hash});
      index_.emplace(*hash, pages_.begin());
    } else {
      pages_.splice(pages_.begin(), pages_, found->second);
    }
    pages_.front().replicas |= uint64_t{1} << replica;
  }
  while (pages_.size() > max_pages_) {
    index_.erase(pages_.back().hash);
    pages_.pop_back();
  }
}

void ReplicaRouter::end(int replica, int64_t tokens) {
  at(replica).requests -= 1;
  at(replica).tokens -= tokens;
}

void ReplicaRouter::forget(int replica) {
  for (auto page = pages_.begin(); page != pages_.end();) {
    page->replicas &= ~(uint64_t{1} << replica);
    if (page->replicas != 0) {
      ++page;
    } else {
      index_.erase(page->hash);
      page = pages_.erase(page);
    }
  }
}

}  // namespace millrace
