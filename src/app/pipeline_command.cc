// millrace pipeline check|draw FILE: a pipeline's file looked at without running it.
#include <algorithm>
#include <cstdio>

#include "app/commands.h"
#include "app/library.h"
#include "app/output.h"
#include "control/endpoint.h"
#include "pipeline/spec.h"
#include "pipeline/supervisor.h"
#include "pipeline/text_pipeline.h"

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
    if (stage.layers) std::printf(" layers [%d, %d)", stage.layers->begin, stage.layers->end);
    if (!stage.layers_to.empty()) std::printf(" => %s", stage.layers_to.c_str());
    if (!stage.prefill_from.empty()) std::printf(" <= %s", stage.prefill_from.c_str());
    if (!stage.encode_from.empty()) std::printf(" <= %s", stage.encode_from.c_str());
    if (stage.stalled_ms == 0) std::printf(" never stalls");
    if (stage.stalled_ms > 0 && stage.stalled_ms != loop::kWorkerStalledMs) {
      std::printf(" stalls at %g s", static_cast<double>(stage.stalled_ms) / 1000);
    }
    if (stage.replicas > 1) std::printf(" x %d", stage.replicas);
    std::printf(" [%s%s%s]\n", stage.process.c_str(), stage.host.empty() ? "" : " on ", stage.host.c_str());
  }
}

// What `serve` would report of the file, but for what its options may still mend.
Status check(const PipelineSpec& spec, const std::string& file) {
  return is_text_pipeline(spec) ? check_text_pipeline(spec, file, 0) : ok_status();
}

// What options must mend.
void print_notes(const PipelineSpec& spec, const std::string& file) {
  const bool over_hosts = spec.over_hosts();
  const Result<Endpoint> control = parse_endpoint(spec.control);
  if (!over_hosts || !spec.key_file.empty() || !control.ok() || control->local()) return;
  std::fprintf(stderr,
               "%s:%d: note: control is %s, beyond loopback, and there is no key_file; wanted one, or --key-file on "
               "every command line\n",
               file.c_str(), spec.line_of("control"), spec.control.c_str());
}

}  // namespace

int run_pipeline(const PipelineOptions& options, AddWorkers add_workers) {
  const auto spec = load_pipeline(options.file, make_library({}, add_workers));
  if (!spec.ok()) return print_error(spec.status()), kExitBadInput;
  if (options.action == "check") {
    if (Status status = check(*spec, options.file); !status.ok()) return print_error(status), kExitBadInput;
    describe(*spec, options.file);
    return print_notes(*spec, options.file), 0;
  }
  const bool named = options.output.ends_with(".dot") || options.output.ends_with(".svg");
  if (options.format.empty() && !named && options.output != "-") {
    print_error(invalid_argument("--output is '{}'; wanted a name that ends with .svg or .dot, or --format beside it",
                                 options.output));
    return kExitBadInput;
  }
  const bool dot = options.format == "dot" || (options.format.empty() && options.output.ends_with(".dot"));
  if (Status status = write_text(options.output, dot ? to_dot(*spec) : to_svg(*spec)); !status.ok()) {
    return print_error(status), kExitBadInput;
  }
  if (options.output != "-") std::printf("%s\n", options.output.c_str());
  return 0;
}

}  // namespace millrace
