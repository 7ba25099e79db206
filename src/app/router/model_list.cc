#include "app/router/model_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "api/model_summary.h"
#include "api/ollama_models.h"
#include "app/model_source.h"
#include "app/options.h"
#include "app/router/models_file.h"
#include "base/log.h"
#include "base/nearest.h"
#include "formats/model_config.h"
#include "hub/cached_models.h"
#include "hub/reference.h"
#include "hub/settings.h"
#include "stages/generating/kv_sizes.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

bool is_model(const fs::path& path) {
  std::error_code failed;
  if (fs::is_directory(path, failed)) return fs::exists(path / "config.json", failed);
  // Of several shards the first one stands for all; a tower is a part of a model.
  const std::string name = path.filename().string();
  const bool later_shard = name.find("-of-") != std::string::npos && name.find("-00001-of-") == std::string::npos;
  return path.extension() == ".gguf" && !name.starts_with("mmproj") && !later_shard;
}

// "Qwen3-0.6B" of a folder or a file, ORG/NAME[:QUANT] of a hub.
std::string name_of(const std::string& path) {
  if (!exists(path)) return path;
  const fs::path clean = fs::path(path + "/").parent_path();  // without slashes at the end
  return (clean.extension() == ".gguf" ? clean.stem() : clean.filename()).string();
}

// "NAME=PATH" or "PATH".
ServedModel model_of(const std::string& text) {
  if (!is_named_model(text)) return {.name = name_of(text), .path = text};
  const std::size_t equals = text.find('=');
  return {.name = text.substr(0, equals), .path = text.substr(equals + 1)};
}

Result<std::vector<fs::path>> entries_of(const fs::path& folder) {
  std::error_code failed;
  std::vector<fs::path> out;
  // Not a range-based for: that one throws where the read of a later entry fails.
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    out.push_back(entry->path());
  }
  if (failed) return invalid_argument("--models-dir: {} cannot be read: {}", folder.string(), failed.message());
  std::sort(out.begin(), out.end());
  return out;
}

Status add_folder(const fs::path& folder, const std::string& prefix, bool deeper, std::vector<ServedModel>& out) {
  ASSIGN_OR_RETURN(const std::vector<fs::path> entries, entries_of(folder));
  for (const fs::path& entry : entries) {
    if (entry.filename().string().starts_with('.')) continue;
    std::error_code failed;
    if (is_model(entry)) {
      const std::string name = entry.extension() == ".gguf" ? entry.stem().string() : entry.filename().string();
      out.push_back({.name = prefix + name, .path = entry.string()});
    } else if (deeper && fs::is_directory(entry, failed)) {
      // A subfolder that only root may read, such as the lost+found of a volume, is no reason to serve nothing.
      const Status status = add_folder(entry, entry.filename().string() + "/", false, out);
      if (!status.ok()) LOG_WARNING("{}; its models are not served", status.message());
    }
  }
  return ok_status();
}

Result<ServedModel*> named(std::vector<ServedModel>& models, const std::string& name, const char* option) {
  for (ServedModel& model : models) {
    if (model.name == name) return &model;
  }
  std::vector<std::string_view> names;
  names.reserve(models.size());
  for (const ServedModel& model : models) names.push_back(model.name);
  return invalid_argument("--{}: there is no model '{}'{}", option, name, suggestion(name, names));
}

Status add_aliases(const ModelListOptions& options, std::vector<ServedModel>& models) {
  for (const std::string& text : options.aliases) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return invalid_argument("--model-alias is '{}'; wanted ALIAS=NAME", text);
    }
    ASSIGN_OR_RETURN(ServedModel * model, named(models, text.substr(equals + 1), "model-alias"));
    model->aliases.push_back(text.substr(0, equals));
  }
  for (const std::string& name : options.pinned) {
    ASSIGN_OR_RETURN(ServedModel * model, named(models, name, "pin-model"));
    model->pinned = true;
  }
  return ok_status();
}

Status check_names(const std::vector<ServedModel>& models) {
  std::vector<std::string> seen;
  for (const ServedModel& model : models) {
    seen.push_back(model.name);
    seen.insert(seen.end(), model.aliases.begin(), model.aliases.end());
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice == seen.end()) return ok_status();
  return invalid_argument("two models have the name '{}'; wanted different names: --model NAME=PATH", *twice);
}

// Equal for two models of the same files; "": they are not there.
std::string canonical_path(const ServedModel& model) {
  const std::optional<std::string> path = local_path(model);
  std::error_code failed;
  return path ? fs::canonical(*path, failed).string() : "";
}

// What `millrace pull` and the tools of Hugging Face have got, but for what has that name already, or another: two
// names of the same files would be loaded twice.
Status add_cached(std::vector<ServedModel>& models) {
  ASSIGN_OR_RETURN(const hub::HubSettings settings, hub::read_settings(::getenv));
  std::set<std::string> paths;
  for (const ServedModel& model : models) paths.insert(canonical_path(model));
  paths.erase("");
  for (const hub::ListedModel& one : hub::list_models(hub::Cache(settings.cache))) {
    const std::string name = one.model.reference.text();
    if (!one.complete || find_model(models, name) != nullptr) continue;
    ServedModel model{.name = name, .path = name};
    // By the name, not by one.model.path: that may be of another revision than the one that is served.
    if (!paths.contains(canonical_path(model))) models.push_back(std::move(model));
  }
  return ok_status();
}

// --context-length of the model: its own in the file of models, or that of all.
int wanted_context(const ServedModel& model, int of_all) {
  constexpr std::string_view kOption = "--context-length=";
  ModelOptions options{.context_length = of_all};
  for (const std::string& argument : model.arguments) {
    if (!argument.starts_with(kOption)) continue;
    (void)set_model_option(options, "context-length", argument.substr(kOption.size()));  // checked by add_models_file()
  }
  return options.context_length;
}

}  // namespace

std::optional<std::string> local_path(const ServedModel& model) {
  if (exists(model.path)) return model.path;
  const auto found = look_up_model(model.path, "");
  if (!found.ok() || found->wanted) return std::nullopt;
  return found->source.path;
}

void describe_model(ServedModel& model, int context_length) {
  const std::optional<std::string> path = local_path(model);
  if (!path) {
    model.files.digest = api::sha256_of(model.name);  // clients show its beginning, and fail without
    return;
  }
  model.files = api::summarize_model(*path);
  model.bytes = model.files.bytes;
  const auto dir = open_model_dir(*path);
  if (!dir.ok()) return;
  model.architecture = architecture_name(dir->config.architecture);
  model.context = millrace::context_length(dir->config, wanted_context(model, context_length));
}

Result<std::vector<ServedModel>> list_models_to_serve(const ModelListOptions& options) {
  std::vector<ServedModel> out;
  for (const std::string& text : options.models) {
    out.push_back(model_of(text));
    if (!exists(out.back().path) && !hub::parse_reference(out.back().path).ok()) {
      return error(StatusCode::kNotFound, "--model: {} is not there; wanted a folder, a GGUF file or ORG/NAME of a hub",
                   out.back().path);
    }
  }
  if (!options.folder.empty()) RETURN_IF_ERROR(add_folder(options.folder, "", true, out));
  if (!options.file.empty()) RETURN_IF_ERROR(add_models_file(options.file, out));
  if (options.cached) RETURN_IF_ERROR(add_cached(out));
  if (out.empty() && !options.cached) {
    return invalid_argument("--models-dir: {} has no model; wanted folders with config.json, or GGUF files",
                            options.folder);
  }
  if (out.size() > kMaxModels) {
    return invalid_argument("there are {} models; wanted at most {}", out.size(), kMaxModels);
  }
  RETURN_IF_ERROR(add_aliases(options, out));
  RETURN_IF_ERROR(check_names(out));
  for (ServedModel& model : out) describe_model(model, options.context_length);
  return out;
}

// A path may have a '=' too.
bool is_named_model(const std::string& text) {
  const std::size_t equals = text.find('=');
  return equals != std::string::npos && equals > 0 && !exists(text) && text.find('/') > equals;
}

const ServedModel* find_model(const std::vector<ServedModel>& models, std::string_view name) {
  const auto is = [](const ServedModel& model, std::string_view wanted) {
    return model.name == wanted || std::find(model.aliases.begin(), model.aliases.end(), wanted) != model.aliases.end();
  };
  for (const std::string_view wanted : {name, api::without_default_tag(name)}) {
    for (const ServedModel& model : models) {
      if (is(model, wanted)) return &model;
    }
  }
  return nullptr;
}

}  // namespace millrace
