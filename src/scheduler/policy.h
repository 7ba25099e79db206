// Policy: in which order waiting requests are offered their place.
//
//   fcfs        the order of arrival
//   lpm         the longest cached prefix first: what is in the cache is used before it is evicted
//   dfs-weight  depth first through the tree of cached prefixes, the subtree that most requests wait for first and
//               longer prefixes before shorter: those that share pages run together
//   lof         the longest permitted output first
//   random      by a hash of the arrival number, the same in every run with the same seed
//   priority    the largest priority first; may preempt running requests (preemption.cc)
// Ties go to the earlier arrival. With all of them the oldest waiting request is overtaken a bounded number of times
// (waiting_queue.h). Without a prefix cache, lpm and dfs-weight are fcfs.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "scheduler/sequence.h"

namespace millrace {

enum class Policy : uint8_t { kFcfs = 0, kLpm = 1, kDfsWeight = 2, kLof = 3, kRandom = 4, kPriority = 5 };

const char* policy_name(Policy policy);
// "fcfs", "lpm", "dfs-weight", "lof", "random", "priority". kInvalidArgument lists the names.
Result<Policy> parse_policy(std::string_view name);

// Whether the order depends on what is cached.
inline bool looks_at_cache(Policy policy) { return policy == Policy::kLpm || policy == Policy::kDfsWeight; }

// Sequence::rank, for policies that do not look at the cache.
int64_t policy_rank(Policy policy, const Sequence& sequence, uint64_t seed);

// For the two that do: sorts `waiting` by what Sequence::matched says is cached (0 where it was never looked up).
// O(n log n) comparisons; those of dfs-weight read the tokens of the matched prefixes.
void order_by_match(std::vector<Sequence*>& waiting);
void order_depth_first(std::vector<Sequence*>& waiting);

}  // namespace millrace
