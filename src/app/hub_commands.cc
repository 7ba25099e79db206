#include "app/hub_commands.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "app/model_source.h"
#include "app/output.h"
#include "app/signals.h"
#include "app/units.h"
#include "base/log.h"
#include "hub/cached_models.h"

namespace millrace {
namespace {

constexpr std::size_t kCommitDigits = 8;  // of a commit, in a table

int failed(const Status& status) { return print_error(status), exit_code_of(status); }

std::string day_of(std::time_t time) {
  std::tm day{};
  char text[16] = "";
  if (::localtime_r(&time, &day) != nullptr) (void)std::strftime(text, sizeof text, "%Y-%m-%d", &day);
  return text;
}

std::string revision_text(const hub::ListedModel& one) {
  if (!one.complete) return "incomplete";
  std::string text;
  for (const std::string& name : one.revisions) text += name + " ";
  return text + one.model.commit.substr(0, kCommitDigits);
}

// For programs: an array of all of it.
void print_json(const std::vector<hub::ListedModel>& models) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const hub::ListedModel& one : models) {
    out.push_back({{"model", one.model.reference.text()},
                   {"path", one.model.path},
                   {"bytes", one.model.bytes},
                   {"modified", static_cast<int64_t>(one.modified)},
                   {"complete", one.complete},
                   {"commit", one.model.commit},
                   {"revisions", one.revisions}});
  }
  std::printf("%s\n", out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

Status list(const ListOptions& options) {
  ASSIGN_OR_RETURN(const hub::HubSettings settings, hub::read_settings(::getenv));
  const std::vector<hub::ListedModel> models = hub::list_models(hub::Cache(settings.cache));
  if (options.json) return print_json(models), ok_status();
  if (models.empty()) {
    std::printf("no models in %s\n", settings.cache.c_str());
    return ok_status();
  }
  std::size_t width = 5;
  for (const hub::ListedModel& one : models) width = std::max(width, one.model.reference.text().size());
  const int column = static_cast<int>(width);
  std::printf("%-*s  %10s  %-10s  %s\n", column, "model", "size", "changed", "revision");
  for (const hub::ListedModel& one : models) {
    std::printf("%-*s  %10s  %-10s  %s\n", column, one.model.reference.text().c_str(),
                bytes_text(one.model.bytes).c_str(), day_of(one.modified).c_str(), revision_text(one).c_str());
  }
  return ok_status();
}

void add_pull_options(CLI::App& command, PullCommandOptions& o) {
  command.add_option("model", o.model, "ORG/NAME, or ORG/NAME:QUANT of a repository of GGUF files")->required();
  command.add_option("--revision", o.revision, "Branch, tag or commit")->capture_default_str();
  command.add_option("--parallel", o.parallel, "Files that are pulled at once")
      ->check(CLI::Range(1, hub::kMaxParallelFiles))
      ->capture_default_str();
}

void add_remove_options(CLI::App& command, RemoveOptions& o) {
  command
      .add_option(
          "model", o.model,
          "ORG/NAME: all that the cache has of it, also for other programs; ORG/NAME:QUANT: one of its GGUF models")
      ->required();
}

int run_pull(const PullCommandOptions& o) {
  const sigset_t signals = block_stop_signals();
  log_init("pull", LogLevel::kWarning);
  const auto settings = hub::read_settings(::getenv);
  if (!settings.ok()) return failed(settings.status());
  auto reference = hub::parse_reference(o.model);
  if (!reference.ok()) return failed(reference.status());
  const auto pulled = pull_model(
      *settings, {.model = std::move(reference).value(), .revision = o.revision, .parallel = o.parallel}, signals);
  if (!pulled.ok()) return failed(pulled.status());
  std::printf("%s: %s in %zu file%s at %s\n", pulled->reference.text().c_str(), bytes_text(pulled->bytes).c_str(),
              pulled->files.size(), pulled->files.size() == 1 ? "" : "s", pulled->path.c_str());
  return 0;
}

int run_list(const ListOptions& options) {
  log_init("list", LogLevel::kWarning);
  const Status status = list(options);
  return status.ok() ? 0 : failed(status);
}

int run_remove(const RemoveOptions& o) {
  log_init("rm", LogLevel::kWarning);
  const auto reference = hub::parse_reference(o.model);
  if (!reference.ok()) return failed(reference.status());
  const auto settings = hub::read_settings(::getenv);
  if (!settings.ok()) return failed(settings.status());
  const auto removed = hub::remove_model(hub::Cache(settings->cache), *reference);
  if (!removed.ok()) return failed(removed.status());
  for (const std::string& model : removed->models) std::printf("removed %s\n", model.c_str());
  std::printf("%s are free\n", bytes_text(removed->bytes).c_str());
  return 0;
}

}  // namespace

void HubCommandLine::add_to(CLI::App& app) {
  pull_ = app.add_subcommand("pull", "Get a model by name from a hub");
  add_pull_options(*pull_, pull_options_);
  list_ = app.add_subcommand("list", "List the models that were pulled");
  list_->add_flag("--json", list_options_.json, "As JSON, for programs");
  show_ = app.add_subcommand("show", "Show what a model is and what it takes, before it is pulled or loaded");
  add_show_options(*show_, show_options_);
  remove_ = app.add_subcommand("rm", "Remove a model that was pulled");
  add_remove_options(*remove_, remove_options_);
}

std::optional<int> HubCommandLine::run() const {
  if (*pull_) return run_pull(pull_options_);
  if (*list_) return run_list(list_options_);
  if (*show_) return run_show(show_options_);
  if (*remove_) return run_remove(remove_options_);
  return std::nullopt;
}

}  // namespace millrace
