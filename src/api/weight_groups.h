// Updates that a trainer broadcasts over a process group (docs/weights.md): join the group, prepare, complete, abort.
// Thread safety: before the server starts.
#pragma once

#include "http/server.h"
#include "stages/weight_control.h"

namespace millrace::api {

// `weights` outlives the server's threads.
void add_weight_group_routes(http::Server& server, WeightControl& weights);

}  // namespace millrace::api
