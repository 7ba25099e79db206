// What serves, over HTTP: values and checksums of the weights, in the form of SGLang's /get_weights_by_name and
// /weights_checker, and vLLM's /weight_info (docs/weights.md).
// Thread safety: before the server starts.
#pragma once

#include "http/server.h"
#include "stages/weight_control.h"

namespace millrace::api {

// `weights` outlives the server's threads.
void add_weight_inspection_routes(http::Server& server, WeightControl& weights);

}  // namespace millrace::api
