#include "app/model_source.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "app/pull_progress.h"
#include "app/signals.h"

namespace millrace {
Result<ModelLookup> look_up_model(const std::string& model, const std::string& revision) {
  struct stat info {};
  const auto reference = hub::parse_reference(model);
  const bool path = ::stat(model.c_str(), &info) == 0;
  if (path || !reference.ok()) {
    if (!revision.empty()) {
      return invalid_argument("--revision is {}, and the model {} is {}; wanted ORG/NAME of a hub", revision, model,
                              path ? "a path" : "no such name");
    }
    return ModelLookup{.source = {.path = model}};
  }
  const std::string wanted = revision.empty() ? "main" : revision;
  RETURN_IF_ERROR(hub::check_revision(wanted));
  ModelLookup out;
  ASSIGN_OR_RETURN(out.settings, hub::read_settings(::getenv));
  ASSIGN_OR_RETURN(out.cached, hub::cached_model(hub::Cache(out.settings.cache), *reference, wanted));
  if (out.cached) {
    out.source = {out.cached->path, out.cached->reference.text()};
  } else {
    out.wanted = *reference;
  }
  return out;
}

Result<hub::CachedModel> pull_model(const hub::HubSettings& settings, const hub::PullOptions& options,
                                    const sigset_t& signals) {
  PullProgressLine line(stderr, options.model.text());
  std::atomic<bool> cancelled{false}, done{false};
  const hub::PullControl control{.transfer = {.cancelled = [&] { return cancelled.load(); },
                                              .note = [&](const std::string& text) { line.note(text); }},
                                 .progress = [&](const hub::PullProgress& progress) { line.update(progress); }};
  std::optional<Result<hub::CachedModel>> result;
  std::thread worker([&] {
    result = hub::pull(settings, options, control);
    done = true;
  });
  while (!done) {
    if (stop_signal(signals)) cancelled = true;
  }
  worker.join();
  if (result->ok() || result->status().code() != StatusCode::kCancelled) return std::move(*result);
  return Status(StatusCode::kCancelled, fmt::format("{}: interrupted; what has arrived is kept, and the same command "
                                                    "goes on from there",
                                                    options.model.text()));
}

Result<ModelSource> cached_source(const std::string& model, const std::string& revision) {
  ASSIGN_OR_RETURN(const ModelLookup found, look_up_model(model, revision));
  if (!found.wanted) return found.source;
  return error(StatusCode::kNotFound, "{} is neither a path nor in the cache {}; get it with: millrace pull {}", model,
               found.settings.cache, model);
}

Result<ModelSource> pulled_source(const std::string& model, const std::string& revision, const sigset_t& signals) {
  ASSIGN_OR_RETURN(const ModelLookup found, look_up_model(model, revision));
  if (!found.wanted) return found.source;
  hub::PullOptions options{.model = *found.wanted};
  if (!revision.empty()) options.revision = revision;
  const auto pulled = pull_model(found.settings, options, signals);
  if (pulled.ok()) return ModelSource{pulled->path, pulled->reference.text()};
  if (pulled.status().code() == StatusCode::kCancelled) return pulled.status();
  return pulled.status().with_prefix(
      fmt::format("{} is neither a path nor in the cache {}", model, found.settings.cache));
}

}  // namespace millrace
