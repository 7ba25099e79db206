#include "app/unused_options.h"

#include <algorithm>
#include <map>

#include "pipeline/text_pipeline.h"

namespace millrace {
namespace {

// Where a pipeline has what these options set of text serving.
const std::map<std::string, std::string> kElsewhere = {
    {"request-timeout-s", "request_timeout_s in the file"},
    {"queue-timeout-s", "request_timeout_s in the file, or timeout_s of a request: its wait is a part of it"},
    {"max-queued-requests", "max_requests in the file, or max_queued_requests in the args of a worker that has it"},
    {"dp", "replicas of a stage in the file"},
    {"stall-restart-s", "stalled_ms of a stage in the file"},
    {"threads", "threads in the resources of a stage in the file"},
};

// `text`: the pipeline's answers are text, of a model that the file names.
std::string instead_of(const std::string& name, bool text) {
  if (const auto found = kElsewhere.find(name); found != kElsewhere.end()) return found->second;
  const std::vector<std::string> of_models = model_option_names();
  if (std::find(of_models.begin(), of_models.end(), name) == of_models.end()) {
    return text ? "it left out: it is for pipelines that take the model of the command line"
                : "it left out: it is for answers that are text";
  }
  std::string key = name;
  std::replace(key.begin(), key.end(), '-', '_');
  return fmt::format("{} in the args of a stage in the file, where its worker has it", key);
}

// What the server of text does itself, whichever file its pipeline is of.
bool is_of_text_server(const std::string& name) {
  static const std::vector<std::string> kNames = {
      "served-model-name", "any-model-name",     "require-model",        "public-models",      "no-web",
      "no-request-log",    "response-store-mib", "response-store-ttl-s", "response-store-file"};
  return std::ranges::find(kNames, name) != kNames.end() || name.starts_with("media-") || name.starts_with("video-");
}

// The first that was given for this model; "": none was.
std::string given(const ServeOptions& options, std::string_view prefix) {
  const auto found = std::ranges::find_if(options.given, [&](const std::string& name) {
    return name.starts_with(prefix) && std::ranges::find(options.if_of_use, name) == options.if_of_use.end();
  });
  return found == options.given.end() ? "" : *found;
}

// Which of several models are loaded is a question only where a router may choose.
Status check_one_model(const ServeOptions& options) {
  for (const char* name : {"models-max", "models-memory-gib"}) {
    if (std::ranges::find(options.given, name) == options.given.end()) continue;
    return invalid_argument(
        "--{} has no use with one model; wanted several (--models-dir FOLDER, or --model for each), or it left out",
        name);
  }
  return ok_status();
}

}  // namespace

Status check_used(const ServeOptions& options, const PipelineSpec& spec) {
  if (!options.response_store_file.empty() && options.response_store_mib == 0) {
    return invalid_argument("--response-store-file has no use: --response-store-mib is 0; wanted 1 or more");
  }
  const bool over_hosts = spec.over_hosts();
  for (const std::string& name : options.given) {
    if (over_hosts || (name != "listen" && name != "key-file" && !name.starts_with("discovery"))) continue;
    return invalid_argument(
        "--{} has no use: no stage of the pipeline has a host; wanted one that names where else "
        "stages run, or the option left out",
        name);
  }
  if (is_text_pipeline(spec)) return check_one_model(options);
  static const std::vector<std::string> kUsed = {"host",
                                                 "port",
                                                 "uds",
                                                 "no-tcp",
                                                 "parent",
                                                 "api-key",
                                                 "admin-api-key",
                                                 "admin-api-key-file",
                                                 "admin-without-key",
                                                 "cors-origin",
                                                 "allowed-host",
                                                 "max-body-mib",
                                                 "sse-ping-s",
                                                 "pipeline",
                                                 "listen",
                                                 "key-file",
                                                 "discovery",
                                                 "discovery-user",
                                                 "discovery-user-file",
                                                 "placement",
                                                 "drain-timeout-s",
                                                 "otlp-traces-endpoint",
                                                 "otlp-traces-sample",
                                                 "profile-dir",
                                                 "log-level",
                                                 "help"};
  const bool text = text_shape(spec).has_value();
  for (const std::string& name : options.given) {
    if (std::find(kUsed.begin(), kUsed.end(), name) != kUsed.end() || (text && is_of_text_server(name))) continue;
    return invalid_argument("--{} has no use with this pipeline; wanted {}", name, instead_of(name, text));
  }
  return ok_status();
}

Status check_media_used(const ServeOptions& options, const MediaFacts& media, const std::string& model) {
  if (const std::string name = given(options, "video-"); !name.empty() && !media.videos) {
    return invalid_argument("--{} has no use: the model '{}' takes no videos", name, model);
  }
  if (const std::string name = given(options, "media-"); !name.empty() && !media.any()) {
    return invalid_argument("--{} has no use: the model '{}' takes text only; wanted one that takes pictures or audio",
                            name, model);
  }
  return ok_status();
}

}  // namespace millrace
