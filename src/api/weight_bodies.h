// Weights in the body of a request, as safetensors: /update_weights_from_tensor (docs/weights.md).
// Thread safety: before the server starts.
#pragma once

#include <cstddef>

#include "http/server.h"
#include "stages/weight_control.h"

namespace millrace::api {

inline constexpr std::size_t kMaxTensorBodyBytes = 256u << 20;  // of one request; others keep the server's limit

// `weights` outlives the server's threads.
void add_weight_body_route(http::Server& server, WeightControl& weights);

}  // namespace millrace::api
