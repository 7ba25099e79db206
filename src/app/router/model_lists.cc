#include "app/router/model_lists.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "api/model_objects.h"
#include "api/ollama_models.h"
#include "base/json.h"

namespace millrace {

std::string model_object(const ServedModel& model, const std::string& id, const ModelStatus& status) {
  std::string out = api::begin_model_object(
      {.id = id, .root = model.name, .created = model.files.modified, .context_length = model.context});
  out += fmt::format(R"(,"status":{{"value":"{}","pinned":{})", model_state_name(status.state), status.pinned);
  if (status.state == ModelState::kLoading) out += fmt::format(R"(,"progress":{:.3f})", status.progress);
  if (!status.error.empty()) out += R"(,"failed":true,"error":)" + json_quoted(status.error);
  return out + "}}";
}

std::string model_list(const std::vector<ServedModel>& models, const std::vector<ModelStatus>& statuses) {
  std::vector<std::pair<std::string, std::string>> objects;
  for (std::size_t i = 0; i < models.size(); ++i) {
    objects.emplace_back(models[i].name, model_object(models[i], models[i].name, statuses[i]));
    for (const std::string& alias : models[i].aliases) {
      objects.emplace_back(alias, model_object(models[i], alias, statuses[i]));
    }
  }
  return api::model_list_body(objects);
}

std::string model_states(const std::vector<ModelStatus>& statuses) {
  std::string out = "[";
  for (const ModelStatus& status : statuses) {
    if (out.size() > 1) out += ',';
    out +=
        fmt::format(R"({{"id":{},"status":"{}","running":{},"waiting":{},"progress":{:.3f},"message":{},"error":{}}})",
                    json_quoted(status.name), model_state_name(status.state), status.running, status.waiting,
                    status.progress, json_quoted(status.message), json_quoted(status.error));
  }
  return out + "]";
}

std::string ollama_list(const std::vector<ServedModel>& models, const std::vector<ModelStatus>& statuses,
                        bool loaded_only) {
  std::vector<nlohmann::ordered_json> out;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const ServedModel& model = models[i];
    if (loaded_only && statuses[i].state != ModelState::kLoaded) continue;
    const auto context = loaded_only ? std::optional(model.context) : std::nullopt;
    out.push_back(api::ollama_model(model.name, model.architecture, model.files, context));
  }
  return api::ollama_list_body(out);
}

std::vector<MetricSample> model_samples(const std::vector<ModelStatus>& statuses) {
  std::vector<MetricSample> out;
  const auto add = [&out](const ModelStatus& status, const char* name, const char* help, double value,
                          MetricLabels more = {}) {
    more.insert(more.begin(), {"model", status.name});
    out.push_back({name, help, std::move(more), value});
  };
  for (const ModelStatus& s : statuses) {
    add(s, "model_loaded", "1: the model is loaded.", s.state == ModelState::kLoaded ? 1 : 0);
    add(s, "model_requests_running", "Requests that a model's server has.", s.running);
    add(s, "model_requests_waiting", "Requests that wait until their model is loaded.", s.waiting);
    add(s, "model_loads_total", "Loads that ended well.", static_cast<double>(s.loads));
    add(s, "model_load_failures_total", "Loads that failed.", static_cast<double>(s.failures));
    const char* unloads = "Models that were unloaded, by the reason.";
    add(s, "model_unloads_total", unloads, static_cast<double>(s.expirations), {{"reason", "ttl"}});
    add(s, "model_unloads_total", unloads, static_cast<double>(s.evictions), {{"reason", "memory"}});
    add(s, "model_unloads_total", unloads, static_cast<double>(s.unloads), {{"reason", "request"}});
  }
  return out;
}

}  // namespace millrace
