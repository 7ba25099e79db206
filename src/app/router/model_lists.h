// The models of a router as JSON and as metrics. Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "app/router/model_pool.h"
#include "base/metrics.h"

namespace millrace {

// An object of /v1/models, with llama.cpp's `status`.
std::string model_object(const ServedModel& model, const std::string& id, const ModelStatus& status);
// The body of /v1/models: each name and alias.
std::string model_list(const std::vector<ServedModel>& models, const std::vector<ModelStatus>& statuses);
// The members "models" of /ready: what each does, and of one that loads how far it is.
std::string model_states(const std::vector<ModelStatus>& statuses);
// The body of Ollama's /api/tags, or of /api/ps: the loaded ones.
std::string ollama_list(const std::vector<ServedModel>& models, const std::vector<ModelStatus>& statuses,
                        bool loaded_only);
std::vector<MetricSample> model_samples(const std::vector<ModelStatus>& statuses);

}  // namespace millrace
