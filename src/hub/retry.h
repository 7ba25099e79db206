// Attempts at something that a network may refuse for a while: bounded, with growing pauses, at least as long as the
// hub asks for.
//
// Thread safety: free function; it blocks its thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace millrace::hub {

struct RetryPolicy {
  int attempts = 5;  // without progress in between
  std::chrono::milliseconds first_pause{500};
  std::chrono::milliseconds longest_pause{30'000};
  std::chrono::seconds longest_retry_after{300};  // asked for by the hub; longer: an error with the value
};

struct Attempt {
  Status status;
  bool again = false;         // another attempt may succeed
  bool progress = false;      // it got further than the one before: attempts are counted anew
  int64_t retry_after_s = 0;  // the hub asks for
};

// What happens around a transfer.
struct TransferControl {
  std::function<bool()> cancelled = [] { return false; };
  std::function<void(const std::string&)> note = [](const std::string&) {};  // a line for the user; from any thread
};

Status with_retries(const RetryPolicy& policy, const TransferControl& control, const std::function<Attempt()>& attempt);

}  // namespace millrace::hub
