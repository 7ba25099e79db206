// vLLM's routes for a trainer, over the same states as SGLang's (docs/weights.md#vllms-routes): /pause, /resume,
// /is_paused, /init_weight_transfer_engine, /start_weight_update, /update_weights, /finish_weight_update,
// /get_world_size.
// Thread safety: before the server starts.
#pragma once

#include "http/server.h"
#include "stages/weight_control.h"

namespace millrace::api {

// `weights` outlives the server's threads.
void add_vllm_weight_routes(http::Server& server, WeightControl& weights);

}  // namespace millrace::api
