#include "scheduler/options.h"

#include <utility>

namespace millrace {

Status validate(const SchedulerOptions& options) {
  const std::pair<const char*, int32_t> positive[] = {{"max_running_requests", options.max_running_requests},
                                                      {"max_queued_requests", options.max_queued_requests},
                                                      {"chunked_prefill_tokens", options.chunked_prefill_tokens}};
  for (const auto& [name, value] : positive) {
    if (value < 1) return invalid_argument("{} is {}; wanted an integer >= 1", name, value);
  }
  const std::pair<const char*, int32_t> not_negative[] = {{"max_skips", options.max_skips},
                                                          {"max_decode_gap_ms", options.max_decode_gap_ms},
                                                          {"priority_preemption_gap", options.priority_preemption_gap}};
  for (const auto& [name, value] : not_negative) {
    if (value < 0) return invalid_argument("{} is {}; wanted an integer >= 0", name, value);
  }
  if (!(options.conservativeness >= 0 && options.conservativeness <= kMaxConservativeness)) {
    return invalid_argument("conservativeness is {}; wanted a number from 0 to {}", options.conservativeness,
                            kMaxConservativeness);
  }
  return validate(options.cache);
}

}  // namespace millrace
