// Runner: the one door between the scheduler and whatever computes tokens.
//
// submit() hands over one prepared batch and returns at once; poll() gives its sampled tokens. At most kMaxInFlight
// batches are in flight; results come in the order of submission. The scheduler owns the KV pages' books (which page
// belongs to whom); the runner owns the bytes behind them. A page named in a batch must stay the request's until that
// batch has been polled.
//
// The scheduler knows this interface only, so it is tested with a fake runner whose next token is a hash of (weight
// version, all tokens so far).
//
// Thread safety: submit and poll are called by one thread, the scheduler's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace millrace {

inline constexpr int kMaxInFlight = 2;

// How one row of logits becomes a token. The draw depends on (seed, position) and the logits alone.
struct SamplingSpec {
  double temperature = 1.0;  // 0 = greedy: the lowest id among the largest logits
  double top_p = 1.0;
  double min_p = 0.0;
  int32_t top_k = -1;
  uint64_t seed = 0;
};

// The share of one request in one step: rows for `tokens` at positions [position, position + tokens.size()).
struct SequenceStep {
  ReqId request;
  std::vector<int32_t> tokens;  // a chunk of the prompt, or the one token sampled last
  int32_t position = 0;         // tokens whose KV is already in `pages`
  std::vector<int32_t> pages;   // page table: covers position + tokens.size() tokens
  bool sample = false;          // sample the token that follows the last row
  SamplingSpec sampling;
};

struct Batch {
  uint64_t step = 0;
  std::vector<SequenceStep> sequences;
};

struct SampledToken {
  ReqId request;
  int32_t token = 0;
  Status status;  // not OK: this row alone failed (NaN logits); the other rows are good
};

struct BatchResult {
  uint64_t step = 0;
  Status status;                     // not OK: the whole step failed, no tokens
  std::vector<SampledToken> tokens;  // one for each sequence with `sample`, in the batch's order
  uint64_t weight_version = 0;
};

struct RunnerFacts {
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  int32_t page_size = 0;
  int32_t page_count = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual RunnerFacts facts() const = 0;
  // kResourceExhausted when kMaxInFlight batches are in flight: a programmer error of the scheduler, not a user's.
  virtual Status submit(Batch batch) = 0;
  // The oldest finished batch; waits up to timeout_ms for it. nullopt: nothing finished in that time, or nothing in
  // flight.
  virtual std::optional<BatchResult> poll(int timeout_ms) = 0;
};

}  // namespace millrace
