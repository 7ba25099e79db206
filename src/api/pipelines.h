// The HTTP surface of a pipeline without a text terminal: POST /v1/pipeline, GET /v1/pipeline (its picture), the
// commands of command_routes.h, and /live, /ready, /health, /version, /metrics as everywhere. For users: docs/api.md.
//
// Thread safety: add_pipeline_routes() before the server starts; handlers run on the threads that routes.h names.
#pragma once

#include <memory>
#include <string>

#include "api/request_spans.h"
#include "http/server.h"
#include "stages/pipeline_engine.h"

namespace millrace::api {

// Of one client's stream: sent by the pipeline, not taken by the socket. Well under http::Limits::max_pending_bytes, at
// which the connection would be cut. One event that is larger waits alone.
inline constexpr std::size_t kMaxUnreadBytes = 512u << 10;

struct PipelineContext {
  http::Server& server;
  PipelineEngine& engine;
  std::string version;                            // of this build
  std::shared_ptr<RequestSpans> spans = nullptr;  // null: no collector
};

// The context outlives the server's threads.
void add_pipeline_routes(PipelineContext& context);
// /v1/pipeline alone, where routes.h has the others.
void add_pipeline_run_routes(PipelineContext& context);

}  // namespace millrace::api
