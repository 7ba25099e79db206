// check_request: whether a request can ever run. The api has checked the same ranges in the client's words; this is the
// last gate before the runner, which may rely on them.
// Thread safety: a pure function.
#pragma once

#include "base/status.h"
#include "runner/runner.h"
#include "scheduler/new_sequence.h"
#include "wire/generation.h"

namespace millrace {

// Of one request's prompt: positions times logprobs at each. More than an answer may hold, and it takes seconds to
// compute.
inline constexpr int64_t kMaxPromptLogprobs = int64_t{3} << 19;

// kInvalidArgument names the field, the value seen and the values wanted; kTooLarge: the prompt fills the context.
// `prepared`: what was made of the request. `model`: its context is one token more than the pool's slots at most.
Status check_request(const wire::TokenizedRequest& request, const PreparedParts& prepared, const RunnerFacts& model);

}  // namespace millrace
