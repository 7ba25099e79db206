// ReplicaRouter: which of several equal schedulers a request goes to.
//
//   round_robin     one after the other
//   least_requests  the one with the fewest live requests
//   least_tokens    the one whose live requests have the fewest tokens, prompts and texts together
//   prefix_aware    the one that has most of the prompt in its cache, as far as the router knows from what it sent
//                   there: where that is more than kCacheThreshold of the prompt, and no replica is overloaded
//
// prefix_aware keeps an approximate picture: the chained hashes of the pages of kRouterPageTokens tokens that each
// replica was given, bounded, the least recently used forgotten first. The guard against the crowd: where the loads
// differ by more than kBalanceAbs requests and the largest is more than kBalanceRel times the smallest, the least
// loaded replica gets the request whatever it knows. Among equals the one with fewer requests is taken, then fewer
// tokens, then the next in turn.
//
// Owner: the coordinator. Thread safety: none; the coordinator's lock guards it.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr int kMaxReplicas = 64;
inline constexpr int32_t kRouterPageTokens = 16;
inline constexpr std::size_t kMaxRouterPages = 1 << 18;        // remembered of all replicas together
inline constexpr std::size_t kMaxRouterPagesPerPrompt = 4096;  // looked at of one prompt
inline constexpr double kCacheThreshold = 0.3;                 // of the prompt; as SGLang's gateway
// SGLang's gateway has 64 and 1.5, for replicas that run hundreds of requests. Replicas that share one machine's
// processors serve few, and a replica that idles wastes its share of them.
inline constexpr int64_t kBalanceAbs = 4;
inline constexpr double kBalanceRel = 1.5;

enum class ReplicaPolicy : uint8_t { kRoundRobin = 0, kLeastRequests = 1, kLeastTokens = 2, kPrefixAware = 3 };

// "round_robin", "least_requests", "least_tokens", "prefix_aware". kInvalidArgument lists the names.
Result<ReplicaPolicy> parse_replica_policy(std::string_view name);
const char* replica_policy_name(ReplicaPolicy policy);

struct ReplicaLoad {
  int64_t requests = 0;
  int64_t tokens = 0;
};

class ReplicaRouter {
 public:
  // The hashes of a prompt's whole pages, each chained to the one before it; the first to the extra key.
  using Prefix = std::vector<uint64_t>;
  static Prefix prefix_of(std::span<const int32_t> prompt, std::string_view extra_key);

  // `replicas` is 1 to kMaxReplicas.
  ReplicaRouter(int replicas, ReplicaPolicy policy, std::size_t max_pages = kMaxRouterPages);

  // Whether anything looks at prefixes: with one replica, or another policy, they need not be made. From any thread.
  bool wants_prefix() const { return policy_ == ReplicaPolicy::kPrefixAware && loads_.size() > 1; }

  // A replica among those that serve; nullopt when none does. Changes nothing but whose turn it is.
  std::optional<int> choose(const Prefix& prefix, const std::vector<bool>& serves);

  // A request goes to `replica`: its load counts, its pages are remembered.
  void begin(int replica, const Prefix& prefix, int64_t tokens);
  void grow(int replica, int64_t tokens) { at(replica).tokens += tokens; }
  void end(int replica, int64_t tokens);

  // Its cache is empty again: it was restarted or flushed.
  void forget(int replica);

  const ReplicaLoad& load(int replica) const { return loads_[static_cast<std::size_t>(replica)]; }
  std::size_t remembered_pages() const { return pages_.size(); }

 private:
  struct Page {
    uint64_t hash = 0;
    uint64_t replicas = 0;  // one bit for each that was given it
  };
  using Pages = std::list<Page>;  // the most recently used first

  ReplicaLoad& at(int replica) { return loads_[static_cast<std::size_t>(replica)]; }
  bool imbalanced(const std::vector<bool>& serves) const;
  std::vector<std::size_t> matched_pages(const Prefix& prefix) const;
  template <typename Better>
  int best(const std::vector<bool>& serves, Better better);

  const ReplicaPolicy policy_;
  const std::size_t max_pages_;
  std::vector<ReplicaLoad> loads_;
  int next_ = 0;  // whose turn it is
  Pages pages_;
  std::unordered_map<uint64_t, Pages::iterator> index_;
};

// What is known of a request when it is placed.
struct PlacementHint {
  ReplicaRouter::Prefix prefix;    // the hashes of the prompt's pages; empty: not known
  int64_t tokens = 0;              // of the prompt
  std::optional<int32_t> replica;  // of every stage that has so many: the client wants this one
};

}  // namespace millrace
