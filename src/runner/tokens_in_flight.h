// TokensInFlight: the tokens that the batch computed last sampled, for the batch behind it. A batch that was submitted
// before those tokens were known holds kTokenInFlight in their places (runner.h).
//
// Owner: the model runner, on its compute thread. Thread safety: none. Batches are computed in the order of submission,
// so "computed last" is "submitted just before".
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "runner/runner.h"

namespace millrace {

class TokensInFlight {
 public:
  // Puts the token in the place of kTokenInFlight at the end of `tokens`, if it stands there.
  // Errors, naming the step and the cause, where there is no such token: that of the request's row or of the whole step
  // with its code, where they failed; kInvalidArgument where nothing was computed before, or nothing sampled for the
  // request.
  Status resolve(SequenceStep& sequence) const;

  // Forgets the step before.
  void remember(const Batch& batch, const BatchResult& result);

 private:
  struct Entry {
    ReqId request;
    int32_t token = 0;
    Status status;
  };

  Result<int32_t> token_of(ReqId request) const;

  bool any_step_ = false;
  uint64_t step_ = 0;
  Status step_status_;
  std::vector<Entry> entries_;  // by request
};

}  // namespace millrace
