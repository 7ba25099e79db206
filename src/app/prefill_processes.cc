#include "app/prefill_processes.h"

#include <unistd.h>

#include <utility>

#include "app/options.h"
#include "base/log.h"

namespace millrace {
namespace {

std::string prefill_name(uint32_t index) { return fmt::format("prefill-{}", index); }

}  // namespace

Result<std::unique_ptr<PrefillProcesses>> PrefillProcesses::make() {
  ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
  return std::unique_ptr<PrefillProcesses>(new PrefillProcesses(std::move(run_dir)));
}

void PrefillProcesses::start(const ModelOptions& options, int count, int schedulers) {
  std::vector<ChildSpec> children;
  for (int i = 0; i < count; ++i) {
    PrefillOptions prefill{.run_dir = run_dir_.path(), .index = i, .parent = ::getpid(), .model = options};
    prefill.model = share_of(options, schedulers + i, schedulers + count);
    prefill.model.kv_events.clear();
    prefill.model.kv_peers = 0;
    children.push_back({.name = prefill_name(static_cast<uint32_t>(i)),
                        .arguments = [prefill](uint64_t) { return prefill_arguments(prefill); }});
  }
  const auto died = [](const std::string& name, const std::string& how) {
    LOG_WARNING("{}: {}; prompts are computed by the schedulers until it is back", name, how);
  };
  const auto gave_up = [](const std::string& name) {
    LOG_ERROR("{} cannot work with what it was given, and is not started again", name);
  };
  supervisor_ = std::make_unique<Supervisor>(
      std::move(children),
      SupervisorEvents{.starting = [](const std::string&, uint64_t) {}, .died = died, .gave_up = gave_up});
  supervisor_->start();
}

PrefillProcesses::~PrefillProcesses() {
  if (supervisor_) supervisor_->stop(kChildGraceMs);
}

}  // namespace millrace
