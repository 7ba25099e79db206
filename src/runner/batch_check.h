// Checks a batch before anything is computed: a scheduler's slip becomes an error of its step, never a wild read or two
// writers in one page. Owner: the model runner, on its compute thread. Thread safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "runner/runner.h"

namespace millrace {

class BatchCheck {
 public:
  explicit BatchCheck(const RunnerFacts& facts);

  // kInvalidArgument naming the request, the value seen and the value wanted: no tokens, a token id outside the
  // vocabulary (kTokenInFlight is one but at the end of `tokens`), rows to score outside the chunk,
  // positions outside the context, a page table that is too short, a page outside the pool, a page that two places of
  // the batch would write.
  Status check(const Batch& batch);

 private:
  Status check_copy(const PageCopy& copy) const;
  Status check_sequence(const SequenceStep& sequence);
  Status check_tokens(const SequenceStep& sequence) const;
  Status check_input(const SequenceStep& sequence) const;
  Status check_capture(const RowCapture& capture) const;
  Status check_pages(const SequenceStep& sequence, int64_t end);

  RunnerFacts facts_;
  // By page: the number of the check that last saw it written. No clearing between batches.
  std::vector<uint64_t> written_in_;
  uint64_t checks_ = 0;
};

}  // namespace millrace
