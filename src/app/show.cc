#include "app/show.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "app/model_report.h"
#include "app/model_source.h"
#include "app/output.h"
#include "app/units.h"
#include "base/log.h"
#include "base/memory_info.h"
#include "hub/skeleton.h"
#include "runner/kv_pages.h"

namespace millrace {
namespace {

// A folder that goes with its owner.
class ScratchFolder {
 public:
  static Result<ScratchFolder> make() {
    std::error_code failed;
    std::string path = std::filesystem::temp_directory_path(failed).string() + "/millrace-show-XXXXXX";
    if (failed || ::mkdtemp(path.data()) == nullptr) {
      return error(StatusCode::kUnavailable, "{}: cannot make the folder", path);
    }
    return ScratchFolder(std::move(path));
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder() {
    std::error_code failed;
    if (!path_.empty()) std::filesystem::remove_all(path_, failed);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Status print_estimate(const ModelConfig& config, uint64_t weight_bytes, const ShowOptions& options) {
  ASSIGN_OR_RETURN(const DType dtype, kv_dtype_from_name(options.kv_dtype));
  const int wanted = options.context_length > 0 ? options.context_length : kShownContext;
  const int tokens = std::min(wanted, config.max_position_embeddings);
  const auto kv =
      static_cast<uint64_t>(kv_page_bytes(config, {0, config.layers}, 1, dtype)) * static_cast<uint64_t>(tokens);
  const uint64_t total = weight_bytes + kv, available = memory_info().available_bytes;
  print_row("memory", fmt::format("{}: weights {}, KV of {} tokens {} ({})", bytes_text(total),
                                  bytes_text(weight_bytes), tokens, bytes_text(kv), options.kv_dtype));
  print_row("available here",
            fmt::format("{}: {}", bytes_text(available), total <= available ? "enough" : "too little"));
  return ok_status();
}

// `shown`: instead of the path of a model that is not in the cache.
Status print_opened(const std::string& path, const std::string& shown, const ShowOptions& options) {
  ASSIGN_OR_RETURN(ModelDir dir, open_model_dir(path));
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(path));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  RETURN_IF_ERROR(check_model(dir, store, {0, dir.config.layers}));
  dir.path = shown;
  print_model(dir, *store);
  return print_estimate(dir.config, store->total_bytes(), options);
}

void print_file(const std::string& name, uint64_t bytes) {
  std::printf("  %10s  %s\n", bytes_text(bytes).c_str(), log_line(name).c_str());
}

Status show_of_hub(const ModelLookup& found, const ShowOptions& options) {
  ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::make());
  const hub::TransferControl control{
      .note = [](const std::string& text) { std::fprintf(stderr, "millrace: %s\n", log_line(text).c_str()); }};
  if (found.settings.offline) {
    return error(StatusCode::kUnavailable, "{} is not in the cache {}, and HF_HUB_OFFLINE is set", options.model,
                 found.settings.cache);
  }
  const std::string revision = options.revision.empty() ? "main" : options.revision;
  const auto fetched = hub::fetch_skeleton(found.settings, *found.wanted, revision, scratch.path(), control);
  if (!fetched.ok()) {
    return fetched.status().with_prefix(
        fmt::format("{} is neither a path nor in the cache {}", options.model, found.settings.cache));
  }
  const hub::Skeleton& skeleton = *fetched;
  const std::string shown = skeleton.reference.text() + ", not pulled";
  const Status status = print_opened(skeleton.path, shown, options);
  if (!status.ok()) {  // the folder is nothing to a user
    std::string text = status.message();
    for (std::size_t at = 0; (at = text.find(scratch.path(), at)) != std::string::npos;) {
      text.replace(at, scratch.path().size(), skeleton.reference.repository);
    }
    return Status(status.code(), text);
  }
  print_row("commit", skeleton.commit);
  uint64_t bytes = 0;
  for (const hub::RemoteFile& file : skeleton.files) bytes += file.size;
  print_row("to pull", fmt::format("{} in {} files", bytes_text(bytes), skeleton.files.size()));
  for (const hub::RemoteFile& file : skeleton.files) print_file(file.name, file.size);
  return ok_status();
}

Status show(const ShowOptions& options) {
  ASSIGN_OR_RETURN(const ModelLookup found, look_up_model(options.model, options.revision));
  if (found.wanted) return show_of_hub(found, options);
  RETURN_IF_ERROR(print_opened(found.source.path, found.source.path, options));
  if (!found.cached) return ok_status();
  print_row("commit", found.cached->commit);
  print_row("files", fmt::format("{} in {} files", bytes_text(found.cached->bytes), found.cached->files.size()));
  const std::string snapshot =
      hub::Cache(found.settings.cache).snapshot(found.cached->reference.repository, found.cached->commit);
  for (const std::string& file : found.cached->files) {
    struct stat info {};
    if (::stat((snapshot + "/" + file).c_str(), &info) == 0) print_file(file, static_cast<uint64_t>(info.st_size));
  }
  return ok_status();
}

}  // namespace

void add_show_options(CLI::App& command, ShowOptions& o) {
  command.add_option("model", o.model, "A path, or ORG/NAME[:QUANT] of a hub, pulled or not")->required();
  command.add_option("--revision", o.revision, "Branch, tag or commit; default: main");
  command
      .add_option(
          "--context-length", o.context_length,
          fmt::format("Tokens of the KV cache in the estimate; default: the model's own, {} at most", kShownContext))
      ->check(CLI::Range(1, 1 << 26));
  command.add_option("--kv-dtype", o.kv_dtype, "How they are stored")
      ->transform(CLI::IsMember({"f32", "bf16", "f16", "int8"}, CLI::ignore_case))
      ->capture_default_str();
}

int run_show(const ShowOptions& options) {
  log_init("show", LogLevel::kOff);
  const Status status = show(options);
  if (status.ok()) return 0;
  print_error(status);
  return exit_code_of(status);
}

}  // namespace millrace
