// A range of a layer split in a process of its own: a child of the one that has the first range.
#include <chrono>
#include <memory>

#include "app/child_server.h"
#include "app/commands.h"
#include "app/output.h"
#include "app/range_processes.h"
#include "app/shutdown_watchdog.h"
#include "app/signals.h"
#include "base/log.h"
#include "base/trace.h"
#include "pipeline/supervisor.h"
#include "runner/range_liveness.h"
#include "stages/generating/load_runner.h"

namespace millrace {
namespace {

Result<std::unique_ptr<RangeServer>> load(const RangeOptions& options) {
  const auto index = static_cast<uint32_t>(options.index);
  ASSIGN_OR_RETURN(const std::vector<LayerRange> ranges, split_layers(options.model));
  ASSIGN_OR_RETURN(ChainLinks links, range_links(options.run_dir, index, static_cast<uint32_t>(ranges.size())));
  return load_range(options.model, ranges, index, std::move(links), [](const std::string&, double) {});
}

// Reports to the first range that this process runs, also while its layers compute.
class AliveSender {
 public:
  AliveSender(std::shared_ptr<Outbox> first, uint32_t index) : first_(std::move(first)), index_(index) {}

  void send_when_due() {
    const auto now = std::chrono::steady_clock::now();
    if (now < due_) return;
    due_ = now + std::chrono::milliseconds(kAliveMs);
    wire::Message alive = wire::LayerAlive{index_};
    (void)first_->send(alive);  // the next one is soon
  }

 private:
  const std::shared_ptr<Outbox> first_;
  const uint32_t index_;
  std::chrono::steady_clock::time_point due_{};
};

}  // namespace

int run_range(const RangeOptions& options) {
  const std::string name = fmt::format("range-{}", options.index);
  log_init(name, log_level_of(options.model.log_level));
  trace::name_process(name);
  if (options.run_dir.empty() || options.parent == 0) {
    print_error(invalid_argument("range is started by serve --pp; wanted no call by a person"));
    return kExitBadInput;
  }
  const sigset_t signals = block_child_stop_signal();
  if (!become_child(options.parent).ok()) return 1;
  ShutdownWatchdog end([] {});
  const auto first = first_range_outbox(options.run_dir);
  if (!first.ok()) {
    print_error(first.status());
    return exit_code_of(first.status());
  }
  ChildServer<RangeServer> range([&options] { return load(options); });
  AliveSender alive(*first, static_cast<uint32_t>(options.index));
  while (!range.ended() && !stop_signal(signals) && parent_alive(options.parent)) alive.send_when_due();
  const bool by_itself = range.ended();
  end.begin(kStopGraceMs);
  range.stop();
  if (!by_itself || range.status().ok()) return 0;
  print_error(range.status());
  return exit_code_of(range.status());
}

}  // namespace millrace
