// What /metrics shows besides what the api itself counts: the HTTP server's and the control plane's counters, and what
// the stages report in their heartbeats. Thread safety: free function.
#pragma once

#include <vector>

#include "base/metrics.h"
#include "http/server.h"
#include "stages/pipeline_engine.h"

namespace millrace::api {

// `replicas`: equal stages have one name, and a label distinguishes them.
std::vector<MetricSample> server_samples(const http::Server& server, const Health& health, bool replicas = false);

// All of a pipeline's numbers, as /metrics writes them, under its name.
std::string pipeline_metrics(const http::Server& server, const PipelineEngine& pipeline);

}  // namespace millrace::api
