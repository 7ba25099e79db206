// What the numbers mean that stages send by name in their heartbeats, for # HELP in /metrics. The names are the stages'
// own: where each is counted stands beside it there. The control plane's have theirs in control/counters.h.
//
// Thread safety: free function.
#pragma once

#include <string_view>

namespace millrace::api {

// One sentence; a general one for a name that is not known here.
const char* stage_metric_help(std::string_view name);

}  // namespace millrace::api
