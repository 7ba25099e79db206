// A prefill replica in a process of its own: a child of serve --prefill.
#include "app/child_server.h"
#include "app/commands.h"
#include "app/end_watch.h"
#include "app/output.h"
#include "app/signals.h"
#include "app/transfer_links.h"
#include "base/log.h"
#include "base/trace.h"
#include "pipeline/supervisor.h"
#include "stages/generating/load_runner.h"
#include "stages/generating/loading.h"
#include "stages/transfer/prefill_server.h"

namespace millrace {
namespace {

using transfer::PrefillServer;

Result<std::unique_ptr<PrefillServer>> load(const PrefillOptions& options) {
  const LoadRunner load_runner = make_load_runner(options.model, nullptr, nullptr);
  ASSIGN_OR_RETURN(std::unique_ptr<Runner> runner, load_runner([](const std::string&, double) {}));
  ASSIGN_OR_RETURN(wire::KvFormat format, kv_format(options.model, runner->facts()));
  // The inbox comes last: a server that is asked can compute.
  ASSIGN_OR_RETURN(transfer::TransferLinks links, prefill_links(options.run_dir, static_cast<uint32_t>(options.index)));
  return std::make_unique<PrefillServer>(scheduler_options(options.model, {}), std::move(runner), std::move(links),
                                         std::move(format));
}

}  // namespace

int run_prefill(const PrefillOptions& options) {
  const std::string name = fmt::format("prefill-{}", options.index);
  log_init(name, log_level_of(options.model.log_level));
  trace::name_process(name);
  if (options.run_dir.empty() || options.parent == 0) {
    print_error(invalid_argument("prefill is started by serve --prefill; wanted no call by a person"));
    return kExitBadInput;
  }
  const sigset_t signals = block_child_stop_signal();
  if (!become_child(options.parent).ok()) return 1;
  EndWatch end([] {});
  ChildServer<PrefillServer> server([&options] { return load(options); });
  while (!server.ended() && !stop_signal(signals) && parent_alive(options.parent)) {
  }
  const bool by_itself = server.ended();
  end.begin(kStopGraceMs);
  server.stop();
  if (!by_itself || server.status().ok()) return 0;
  print_error(server.status());
  return exit_code_of(server.status());
}

}  // namespace millrace
