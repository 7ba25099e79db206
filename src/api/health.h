// /ready and /health: the same answer for every engine. Thread safety: free function.
#pragma once

#include <array>
#include <string>

#include "http/message.h"
#include "stages/engine.h"

namespace millrace::api {

// Where it stands: also where the probes of vLLM's (/ping) and SGLang's (/health_generate) deployments ask. No token is
// generated for any of them: a stage that stands still is known by its heartbeats.
inline constexpr std::array kReadyPaths = {"/ready", "/health", "/v1/health", "/ping", "/health_generate"};
// 200 when requests are accepted now, else 503 with the reason.
http::Response health_response(const Health& health);

// A stage as an object, as its last heartbeat has it.
void append_stage(std::string& out, const wire::StageStatus& stage);
// ... and the state of the weights and of an update.
void append_weights(std::string& out, const WeightsState& weights);

}  // namespace millrace::api
