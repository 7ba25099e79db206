#include "app/router/pull_routes.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "api/error.h"
#include "api/fields.h"
#include "api/ollama_error.h"
#include "api/ollama_models.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "hub/cached_models.h"
#include "hub/pull.h"

namespace millrace {
namespace {

constexpr std::size_t kSha256Digits = 64, kShownDigits = 12;

// "hf.co/ORG/NAME:QUANT", as Ollama's clients write it, without what stands before and behind the name.
std::string hub_name(std::string name) {
  for (const std::string_view host : {"hf.co/", "huggingface.co/"}) {
    if (name.starts_with(host)) name.erase(0, host.size());
  }
  return std::string(api::without_default_tag(name));
}

// `model`, or `name` as older clients have it.
Result<std::string> read_name(const Json& body) {
  std::string name;
  for (const char* key : {"model", "name"}) {
    if (name.empty()) RETURN_IF_ERROR(json_read(body, key, name));
  }
  if (name.empty()) return invalid_argument("model is missing; wanted the name of a model");
  return name;
}

bool is_path(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

// `model`, and those that have files of it: under another name, or of the same repository where all of it goes.
std::vector<ServedModel> removed_with(const std::vector<ServedModel>& models, const ServedModel& model,
                                      const hub::Cache& cache, const hub::ModelReference& reference) {
  std::vector<ServedModel> out = {model};
  for (const ServedModel& other : models) {
    if (other.name == model.name) continue;
    const auto path = local_path(other);
    if (path && hub::is_removed_with(cache, reference, *path)) out.push_back(other);
  }
  return out;
}

std::string line_of(const nlohmann::ordered_json& event) { return event.dump() + "\n"; }

// The events of one pull, as far as the client has them: its progress file by file, as clients draw a bar for each
// digest. Thread safety: one thread at a time.
class PullEvents {
 public:
  PullEvents(http::ResponderPtr responder, bool stream) : responder_(std::move(responder)), stream_(stream) {}

  void progress(const hub::PullProgress& now) {
    if (!stream_) return;
    const bool begins = !std::exchange(begun_, true);
    if (begins) {
      responder_->start_stream("application/x-ndjson");
      responder_->write(line_of({{"status", "pulling manifest"}}));
    }
    const bool complete = now.file_bytes_done == now.file->size;
    const auto next = next_ms_.try_emplace(now.file->name, 0).first;
    if (next->second == kOver || (!complete && monotonic_ms() < next->second)) return;
    next->second = complete ? kOver : monotonic_ms() + kPullEventMs;
    responder_->write(line_of(event_of(now)));
  }

  void end(const Status& status) {
    const api::ApiError error = status.ok() ? api::ApiError() : api::from_status(status);
    if (begun_ && status.ok()) return responder_->end(line_of({{"status", "success"}}));
    if (begun_) return responder_->end(line_of({{"error", error.message}}));
    if (!status.ok()) return static_cast<void>(responder_->send(api::ollama_error_response(error)));
    const std::string success = line_of({{"status", "success"}});
    responder_->send({.content_type = stream_ ? "application/x-ndjson" : "application/json", .body = success});
  }

 private:
  static constexpr int64_t kOver = std::numeric_limits<int64_t>::max();

  // A large file by its SHA-256, as Ollama names a layer; a small one has none.
  static nlohmann::ordered_json event_of(const hub::PullProgress& now) {
    const bool is_sha256 = now.file->etag.size() == kSha256Digits;
    nlohmann::ordered_json event{
        {"status", "pulling " + (is_sha256 ? now.file->etag.substr(0, kShownDigits) : now.file->name)}};
    if (is_sha256) event["digest"] = "sha256:" + now.file->etag;
    event["total"] = now.file->size;
    event["completed"] = now.file_bytes_done;
    return event;
  }

  const http::ResponderPtr responder_;
  const bool stream_;
  bool begun_ = false;
  std::map<std::string, int64_t> next_ms_;  // of each file: when an event may follow
};

Status check_allowed(bool allowed, const http::Request& request) {
  if (allowed) return ok_status();
  return error(StatusCode::kPermissionDenied,
               "{} is not allowed: this server was started without --allow-pull, with the models that it has",
               request.path);
}

}  // namespace

void PullRoutes::add_route(const char* method, const char* pattern, Method handle) {
  server_.add_route({.method = method,
                     .pattern = pattern,
                     .same_origin = true,
                     .require_json = false,
                     .render_error =
                         [](int status, std::string_view message, std::string_view) {
                           return api::ollama_error_response({.http_status = status, .message = std::string(message)});
                         },
                     .handler =
                         [this, handle](auto request, auto responder) {
                           const Status status = (this->*handle)(*request, responder);
                           if (!status.ok()) responder->send(api::ollama_error_response(api::field_error(status)));
                         }});
}

void PullRoutes::add() {
  add_route("POST", "/api/pull", &PullRoutes::pull);
  add_route("POST", "/api/copy", &PullRoutes::copy);
  add_route("DELETE", "/api/delete", &PullRoutes::remove);
  for (const char* path : {"/api/push", "/api/create", "/api/blobs/{digest}"}) {
    add_route("POST", path, &PullRoutes::unserved);
  }
}

Status PullRoutes::unserved(const http::Request& request, const http::ResponderPtr& responder) {
  responder->send(api::ollama_error_response(
      {.http_status = 501,
       .message = fmt::format("{} is not served: models are those of a hub and of files", request.path)}));
  return ok_status();
}

Status PullRoutes::pull(const http::Request& request, const http::ResponderPtr& responder) {
  RETURN_IF_ERROR(check_allowed(options_.allowed, request));
  ASSIGN_OR_RETURN(const Json body, api::parse_body(request.body));
  ASSIGN_OR_RETURN(const std::string name, read_name(body));
  bool insecure = false, stream = true;
  RETURN_IF_ERROR(json_read(body, "insecure", insecure));
  RETURN_IF_ERROR(json_read(body, "stream", stream));
  if (insecure)
    return invalid_argument("insecure is true; wanted false: the hub's address is the server's HF_ENDPOINT");
  ASSIGN_OR_RETURN(hub::ModelReference reference, hub::parse_reference(hub_name(name)));
  ASSIGN_OR_RETURN(hub::HubSettings settings, hub::read_settings(::getenv));
  const std::lock_guard lock(mutex_);
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    if (!job->done) {
      ++job;
      continue;
    }
    job->thread.join();
    job = jobs_.erase(job);
  }
  if (stopping_) return Status(StatusCode::kUnavailable, "the server stops");
  if (jobs_.size() >= kMaxPulls) {
    return error(StatusCode::kResourceExhausted, "{} models are pulled already, the limit; try again later",
                 jobs_.size());
  }
  Job& job = jobs_.emplace_back();
  job.settings = std::move(settings);
  job.reference = std::move(reference);
  job.asked = name;
  job.stream = stream;
  job.responder = responder;
  job.thread = std::thread([this, &job] {
    run(job);
    job.responder.reset();
    job.done = true;
  });
  return ok_status();
}

void PullRoutes::run(Job& job) {
  PullEvents events(job.responder, job.stream);
  const hub::PullControl control{
      .transfer = {.cancelled = [this, &job] { return stopping_ || job.responder->disconnected(); },
                   .note = [&job](const std::string& text) { LOG_INFO("pull {}: {}", job.reference.text(), text); }},
      .progress = [&events](const hub::PullProgress& now) { events.progress(now); }};
  LOG_INFO("pull {}: begins", job.reference.text());
  const auto pulled = hub::pull(job.settings, {.model = job.reference}, control);
  Status status = pulled.status();
  if (pulled.ok()) status = take(job, pulled->reference.text());
  if (status.code() == StatusCode::kCancelled) {
    status = Status(StatusCode::kUnavailable,
                    stopping_ ? "the server stops" : "the client has left; what has arrived is kept");
  }
  LOG_INFO("pull {}: {}", job.reference.text(), status.ok() ? "complete" : status.message());
  events.end(status);
}

// The pulled model is one of the server's, under the name that its client has for it too.
Status PullRoutes::take(Job& job, const std::string& name) {
  ServedModel model{.name = name, .path = name};
  describe_model(model, options_.context_length);
  const Status added = pool_.add(std::move(model));
  if (!added.ok() && added.code() != StatusCode::kConflict) return added;
  const auto models = pool_.models();
  const ServedModel* const known = find_model(*models, name);
  if (known == nullptr || find_model(*models, job.asked) != nullptr) return ok_status();
  const Status named = pool_.add_alias(known->name, job.asked);
  return named.code() == StatusCode::kConflict ? ok_status() : named;
}

Status PullRoutes::copy(const http::Request& request, const http::ResponderPtr& responder) {
  RETURN_IF_ERROR(check_allowed(options_.allowed, request));
  ASSIGN_OR_RETURN(const Json body, api::parse_body(request.body));
  std::string source, destination;
  RETURN_IF_ERROR(json_read(body, "source", source));
  RETURN_IF_ERROR(json_read(body, "destination", destination));
  const auto models = pool_.models();
  const ServedModel* const model = find_model(*models, source);
  if (model == nullptr) return error(StatusCode::kNotFound, "source: there is no model '{}'", source.substr(0, 200));
  destination = api::without_default_tag(destination);
  const bool printable =
      std::all_of(destination.begin(), destination.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (destination.empty() || destination.size() > kMaxCopyNameBytes || !printable) {
    return invalid_argument("destination has {} bytes; wanted 1 to {} printable ones", destination.size(),
                            kMaxCopyNameBytes);
  }
  RETURN_IF_ERROR(pool_.add_alias(model->name, destination));
  responder->send({});
  return ok_status();
}

Status PullRoutes::remove(const http::Request& request, const http::ResponderPtr& responder) {
  RETURN_IF_ERROR(check_allowed(options_.allowed, request));
  ASSIGN_OR_RETURN(const Json body, api::parse_body(request.body));
  ASSIGN_OR_RETURN(std::string name, read_name(body));
  const auto models = pool_.models();
  const ServedModel* const model = find_model(*models, name);
  if (model == nullptr) return error(StatusCode::kNotFound, "there is no model '{}'", name.substr(0, 200));
  const auto is_alias = [model](const std::string& each) {
    return std::find(model->aliases.begin(), model->aliases.end(), each) != model->aliases.end();
  };
  if (!is_alias(name)) name = api::without_default_tag(name);
  if (is_alias(name)) {
    RETURN_IF_ERROR(pool_.remove_alias(name));
    responder->send({});
    return ok_status();
  }
  const auto reference = hub::parse_reference(model->path);
  if (!reference.ok() || is_path(model->path)) {
    return error(StatusCode::kPermissionDenied, "'{}' is a file of the operator's; wanted one that was pulled", name);
  }
  ASSIGN_OR_RETURN(const hub::HubSettings settings, hub::read_settings(::getenv));
  const hub::Cache cache(settings.cache);
  const std::vector<ServedModel> gone = removed_with(*models, *model, cache, *reference);
  std::vector<std::string> names;
  names.reserve(gone.size());
  for (const ServedModel& each : gone) names.push_back(each.name);
  // First from the list: no request loads them while their files go.
  RETURN_IF_ERROR(pool_.remove(names));
  const auto removed = hub::remove_model(cache, *reference);
  if (!removed.ok()) {
    for (const ServedModel& each : gone) (void)pool_.add(each);
    return removed.status();
  }
  LOG_INFO("a client deleted {}", fmt::join(names, ", "));
  responder->send({});
  return ok_status();
}

void PullRoutes::stop() {
  std::list<Job> jobs;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs.splice(jobs.end(), jobs_);
  }
  for (Job& job : jobs) job.thread.join();
}

}  // namespace millrace
