// Orders of the operator to a pipeline of any shape: /flush_cache, /start_profile, /stop_profile. Each stage answers
// for itself; the HTTP answer has all of their words. docs/api.md tells users.
//
// Thread safety: before the server starts.
#pragma once

#include "api/pipelines.h"

namespace millrace::api {

void add_pipeline_order_routes(PipelineContext& context);

}  // namespace millrace::api
