// A scheduler's facts as numbers for /metrics, by the names that dashboards know where there is one. Those that a
// heartbeat has fields for (running, waiting, pages) are not repeated. Thread safety: a free function.
#pragma once

#include <vector>

#include "scheduler/options.h"
#include "wire/messages.h"

namespace millrace {

std::vector<wire::Metric> metrics_of(const SchedulerFacts& facts);

}  // namespace millrace
