// millrace pipeline check|draw FILE: a pipeline's file looked at without running it.
#include <cstdio>

#include "app/backend.h"
#include "app/commands.h"
#include "app/library.h"
#include "app/output.h"
#include "pipeline/spec.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// What a reader of the file wants to see at one look.
void describe(const PipelineSpec& spec, const std::string& file) {
  std::printf("%s: pipeline '%s', %zu stages, entry %s, terminals %s\n", file.c_str(), spec.name.c_str(),
              spec.stages.size(), spec.entry.c_str(), listed(spec.terminals()).c_str());
  for (const StageSpec& stage : spec.stages) {
    std::printf("  %-20s %-20s", stage.name.c_str(), stage.worker.c_str());
    if (!stage.next.empty()) std::printf(" -> %s", listed(stage.next).c_str());
    if (stage.terminal) std::printf(" terminal");
    if (!stage.stream_to.empty()) std::printf(" ~> %s", listed(stage.stream_to).c_str());
    if (!stage.wait_for.empty()) std::printf(" waits for %s", listed(stage.wait_for).c_str());
    if (stage.stalled_ms == 0) std::printf(" never stalls");
    if (stage.stalled_ms > 0 && stage.stalled_ms != loop::kWorkerStalledMs) {
      std::printf(" stalls at %g s", static_cast<double>(stage.stalled_ms) / 1000);
    }
    if (stage.replicas > 1) std::printf(" x %d", stage.replicas);
    std::printf(" [%s%s%s]\n", stage.process.c_str(), stage.host.empty() ? "" : " on ", stage.host.c_str());
  }
}

}  // namespace

int run_pipeline(const PipelineOptions& options) {
  const auto spec = load_pipeline(options.file, make_library());
  if (!spec.ok()) return print_error(spec.status()), kExitBadInput;
  if (options.action == "check") return describe(*spec, options.file), 0;
  const bool dot = options.format == "dot" || (options.format.empty() && options.output.ends_with(".dot"));
  if (Status status = write_text(options.output, dot ? to_dot(*spec) : to_svg(*spec)); !status.ok()) {
    return print_error(status), kExitBadInput;
  }
  if (options.output != "-") std::printf("%s\n", options.output.c_str());
  return 0;
}

}  // namespace millrace
