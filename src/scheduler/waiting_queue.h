// WaitingQueue: accepted requests that hold no pages yet, offered their place in the order of a policy, with bounded
// skip-over.
//
// Two bounds, so that nobody starves whatever the policy (max_skips each):
//   1. A request that was offered its place and did not fit lets at most max_skips of those behind it in the policy's
//      order pass; then nobody behind it is admitted in a pass that reaches it.
//   2. The oldest waiting request is overtaken by at most max_skips others while it is the oldest. Then it is offered
//      its place first, and nobody is admitted before it.
// So of those that arrived later, fcfs lets at most max_skips pass a request in its whole life. With the other policies
// a request that has k older ones before it sees at most k + (k + 1) * max_skips admissions before its own. A request
// that was retracted comes back with its old arrival number, so it is among the older ones again. One that waits for
// another to compute its prefix (Admission::kDeferred, bounded by its caller) loses nothing by waiting, so it lets all
// pass: it holds up nobody, and bound 1 does not count for it.
//
// Owner: the scheduler. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "scheduler/policy.h"
#include "scheduler/sequence.h"

namespace millrace {

inline constexpr int32_t kMaxSkips = 16;
inline constexpr int32_t kSkipWindow = 32;  // requests looked at in one pass: bounds the cost of a step
// lpm and dfs-weight order so many of the oldest; those after them wait in the order of arrival until they are among
// them. Bounds the cost of a step, too.
inline constexpr int32_t kOrderWindow = 128;

enum class Admission {
  kAdmitted,
  kNoRoom,    // this one does not fit now; a smaller one behind it may
  kDeferred,  // another is computing what it would compute; those behind it may go
  kStop,      // nobody fits: as many run as may run
};

class WaitingQueue {
 public:
  explicit WaitingQueue(int32_t max_skips, Policy policy = Policy::kFcfs, uint64_t seed = 0)
      : max_skips_(max_skips), policy_(policy), seed_(seed) {}

  void push(Sequence& sequence);
  void remove(const Sequence& sequence);
  // Removes one that was admitted out of turn: the oldest is overtaken by it.
  void take(Sequence& sequence) { remove(sequence), admitted(sequence, {}); }
  bool empty() const { return by_rank_.empty(); }
  int32_t size() const { return static_cast<int32_t>(by_rank_.size()); }
  // The first `count` by arrival, or all.
  std::vector<const Sequence*> oldest(std::size_t count) const;
  Sequence& oldest() const {
    CHECK(!empty());
    return *by_arrival_.begin()->second;
  }
  // The last in the order of a policy that does not look at the cache, among those never admitted; nullptr: none.
  Sequence* worst() const;

  // Offers the requests to `admit` in their order until it says kStop or the bounds above end the pass. Admitted ones
  // leave the queue. `admit` must not touch the queue. `look` brings Sequence::look.matched up to date; it is called
  // for policies that look at the cache only.
  using Admit = std::function<Admission(Sequence&)>;
  using Look = std::function<void(Sequence&)>;
  void offer(const Admit& admit, const Look& look = {});

 private:
  using Rank = std::pair<int64_t, uint64_t>;  // the policy's rank, then the arrival
  static Rank rank_of(const Sequence& sequence) { return {sequence.queue.rank, sequence.arrival}; }
  std::vector<Sequence*> candidates(const Look& look) const;
  void admitted(Sequence& sequence, const std::vector<Sequence*>& passed);

  int32_t max_skips_;
  Policy policy_;
  uint64_t seed_;
  std::map<Rank, Sequence*> by_rank_;
  std::map<uint64_t, Sequence*> by_arrival_;
};

}  // namespace millrace
