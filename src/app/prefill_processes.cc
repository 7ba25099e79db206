#include "app/prefill_processes.h"

#include <unistd.h>

#include <utility>

#include "app/held_mailbox.h"
#include "app/options.h"
#include "base/log.h"

namespace millrace {
namespace {

std::string decode_name(uint32_t index) { return fmt::format("decode-{}", index); }
std::string prefill_name(uint32_t index) { return fmt::format("prefill-{}", index); }

// A server of this folder may connect to the others in it, and to nothing else.
Result<transfer::TransferLinks> links_in(const std::string& run_dir, const std::string& name) {
  auto zmq = std::make_shared<ZmqContext>();
  transfer::TransferLinks links;
  links.endpoint = RunDir::ipc_endpoint(run_dir, name);
  ASSIGN_OR_RETURN(auto inbox, bind_inbox(*zmq, links.endpoint));
  links.inbox = std::make_unique<HeldInbox>(zmq, std::move(inbox));
  links.connect = [zmq, run_dir](const std::string& endpoint) -> Result<std::shared_ptr<Outbox>> {
    const std::string folder = "ipc://" + run_dir + "/";
    if (!endpoint.starts_with(folder) || endpoint.find('/', folder.size()) != std::string::npos) {
      return invalid_argument("'{}' is no socket of {}", quoted_endpoint(endpoint), run_dir);
    }
    ASSIGN_OR_RETURN(auto outbox, connect_outbox(*zmq, endpoint, BeforeConnected::kRefuse));
    return std::shared_ptr<Outbox>(std::make_shared<HeldOutbox>(zmq, std::move(outbox)));
  };
  return links;
}

}  // namespace

Result<transfer::TransferLinks> decode_links(const std::string& run_dir, uint32_t index, int peers) {
  ASSIGN_OR_RETURN(transfer::TransferLinks links, links_in(run_dir, decode_name(index)));
  for (int i = 0; i < peers; ++i) {
    links.peers.push_back(RunDir::ipc_endpoint(run_dir, prefill_name(static_cast<uint32_t>(i))));
  }
  return links;
}

Result<transfer::TransferLinks> prefill_links(const std::string& run_dir, uint32_t index) {
  return links_in(run_dir, prefill_name(index));
}

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
