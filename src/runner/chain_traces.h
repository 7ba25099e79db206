// ChainTraces: what the ranges of a chain did for requests that are traced, from their first part to their last answer.
// Parts have rows of several requests: a request's figures count the parts that it had rows in.
//
// Owner: ChainRunner. Thread safety: begin() and end() from any thread, the rest by its compute thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/span.h"
#include "runner/runner.h"
#include "wire/layer_messages.h"

namespace millrace {

class ChainTraces {
 public:
  explicit ChainTraces(uint32_t ranges) : ranges_(ranges) {}

  void begin(ReqId request);
  // Of each range, the first one first; none where nothing of it was computed.
  std::vector<RangeFigures> end(ReqId request);

  // A part leaves the first range.
  void sent(const wire::LayerStep& part) {
    if (any_.load(std::memory_order_relaxed)) count(part);
  }
  // It is back.
  void answered(uint64_t step, uint32_t part, std::span<const int64_t> compute_us);
  // All parts in flight are lost.
  void lost() { in_flight_.clear(); }

 private:
  void count(const wire::LayerStep& part);

  const uint32_t ranges_;
  std::atomic<bool> any_{false};  // requests_ has some
  std::mutex mutex_;
  std::map<ReqId, std::vector<RangeFigures>> requests_;  // guarded by mutex_
  // Of traced requests; the compute thread's.
  std::map<std::pair<uint64_t, uint32_t>, std::vector<ReqId>> in_flight_;  // by step and part
};

}  // namespace millrace
