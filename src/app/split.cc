#include "app/split.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "app/model_source.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/signals.h"
#include "app/units.h"
#include "base/log.h"
#include "models/split_model.h"
#include "models/split_plan.h"
#include "pipeline/supervisor.h"
#include "stages/generating/load_runner.h"
#include "stages/generating/tensors_hash.h"

namespace millrace {
namespace {

uint64_t bytes_of(const std::filesystem::path& folder) {
  uint64_t bytes = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) bytes += entry.file_size(failed);
  return bytes;
}

Result<std::vector<LayerRange>> ranges_of(const SplitOptions& options) {
  ASSIGN_OR_RETURN(const SplitRule rule, parse_split_rule(options.split));
  const bool counted = rule.kind == SplitRule::Kind::kCounts;
  if (options.pp == 0 && !counted) return invalid_argument("--pp is missing; wanted the number of ranges");
  return split_layers({.model = options.model,
                       .pp = options.pp > 0 ? options.pp : static_cast<int>(rule.counts.size()),
                       .split = options.split});
}

Status split(const SplitOptions& options, std::vector<LayerRange>& ranges) {
  const sigset_t signals = block_stop_signals();
  ASSIGN_OR_RETURN(ranges, ranges_of(options));
  ASSIGN_OR_RETURN(const uint64_t hash, tensors_hash(options.model));
  LoadingProgress shown(stderr);
  Status done =
      split_model(options.model, ranges, hash, options.output, show_until_signal(shown, "writing the shards", signals));
  shown.finish();
  return done;
}

}  // namespace

void add_split_options(CLI::App& command, SplitOptions& o) {
  command.add_option("model", o.model, "Hugging Face model directory")->required();
  command.add_option("--pp", o.pp, "Ranges: a folder is written for each")->check(CLI::Range(1, kMaxRanges));
  command
      .add_option("--split", o.split,
                  "Which layers go where: even, balanced (bytes that a decode step reads), memory (bytes held), or the "
                  "layers of each range, such as 9,19 (docs/layers.md)")
      ->capture_default_str();
  command.add_option("--out,-o", o.output, "Folder to make, with 0, 1 and so on in it")->required();
}

int run_split(const SplitOptions& given) {
  log_init("split", LogLevel::kWarning);
  SplitOptions options = given;
  const auto source = cached_source(given.model, "");
  if (!source.ok()) return print_error(source.status()), kExitBadInput;
  options.model = source->path;
  std::vector<LayerRange> ranges;
  const Status status = split(options, ranges);
  if (!status.ok()) {
    print_error(status);
    return exit_code_of_writing(status);
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::string folder = fmt::format("{}/{}", options.output, i);
    std::printf("%s: layers [%d, %d), %s\n", folder.c_str(), ranges[i].begin, ranges[i].end,
                bytes_text(bytes_of(folder)).c_str());
  }
  return 0;
}

}  // namespace millrace
