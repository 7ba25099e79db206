#include "pipeline/network.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "pipeline/run_dir.h"
#include "relay/registry.h"

namespace millrace {
namespace {

// A SYN that is lost is sent again after 1 s, the next ones after 2 and 4 s more (RFC 6298): three may be lost. A host
// that is gone is noticed by its lease before.
constexpr int kConnectOverHostsMs = 10'000;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

// "[::1]" or "10.0.0.1" of an endpoint.
std::string host_text(const Endpoint& endpoint) {
  return endpoint.ipv6 ? fmt::format("[{}]", endpoint.name) : endpoint.name;
}

}  // namespace

Result<std::unique_ptr<PipelineNetwork>> PipelineNetwork::make(const PipelineSpec& spec, std::string run_dir,
                                                               std::string listen, bool one_process) {
  std::unique_ptr<PipelineNetwork> network(new PipelineNetwork());
  network->run_dir_ = std::move(run_dir);
  network->control_ = spec.control;
  network->over_hosts_ = spec.over_hosts();
  network->one_process_ = one_process;
  // A reader needs what any writer may choose, the coordinator included, so every stage has all of them.
  std::set<std::string> all = {"local", "shm"};
  if (network->over_hosts_) all.insert("tcp");
  all.insert(spec.relay.backend);
  // The coordinator reads from terminals alone, and writes by the pipeline's own. A relay that others reach may end its
  // process (docs/relay-ucx.md), which is the HTTP server's too: it has none that it does not need.
  std::set<std::string> of_coordinator = all;
  for (const StageSpec& stage : spec.stages) {
    all.insert(stage.relay.backend);
    if (stage.terminal) of_coordinator.insert(stage.relay.backend);
  }
  all.erase("auto"), of_coordinator.erase("auto");
  network->backends_ = std::move(all), network->coordinator_backends_ = std::move(of_coordinator);
  if (!spec.key_file.empty()) {
    ASSIGN_OR_RETURN(network->key_, SharedKey::load(spec.key_file));
  }
  if (!network->over_hosts_) return network;
  // An address that stands for all interfaces is no address for a peer: it goes to others in the commands and tables.
  if (Status status = check_reachable(spec.control); !status.ok()) return status.with_prefix("control");
  if (Status status = listen.empty() ? ok_status() : check_reachable(fmt::format("tcp://{}:1", listen)); !status.ok()) {
    return status.with_prefix("--listen");
  }
  ASSIGN_OR_RETURN(const Endpoint control, parse_endpoint(spec.control));
  RETURN_IF_ERROR(network->check_far(control, listen));
  network->listen_ = listen.empty() ? host_text(control) : std::move(listen);
  // Last: it names this object, which is at its final address in the unique_ptr.
  // A message that waited for an absent coordinator would be old when it arrives.
  network->links_.emplace(spec.control, [self = network.get()](const std::string& control) {
    return connect_outbox(self->zmq_, control, {.policy = BeforeConnected::kRefuse, .key = self->key()});
  });
  return network;
}

Status PipelineNetwork::check_far(const Endpoint& control, const std::string& listen) const {
  // Either is enough: a stage's inbox listens at `listen`, the coordinator's at `control`.
  const bool far = !control.local() || (!listen.empty() && !parse_endpoint(fmt::format("tcp://{}:1", listen))->local());
  if (!far || key_) return ok_status();
  return invalid_argument(
      "{} is reached by other machines; wanted a shared key with it, by --key-file or the file's "
      "key_file, or a loopback address",
      control.local() ? listen : control.to_string());
}

// Of an inbox that only this host reaches.
std::string PipelineNetwork::inbox_endpoint(const std::string& name) const {
  return one_process_ ? "inproc://" + name : RunDir::ipc_endpoint(run_dir_, name);
}

std::string PipelineNetwork::coordinator_endpoint() const {
  return over_hosts_ ? control_ : inbox_endpoint(kCoordinatorStage);
}

Result<std::unique_ptr<Inbox>> PipelineNetwork::bind_coordinator() {
  return bind_inbox(zmq_, coordinator_endpoint(), key());
}

Result<std::unique_ptr<Inbox>> PipelineNetwork::bind_stage(const std::string& stage, uint32_t replica,
                                                           uint64_t incarnation) {
  if (over_hosts_) return bind_inbox(zmq_, fmt::format("tcp://{}:0", listen_), key());
  // With the incarnation, so that the process that follows a killed one binds another file: messages for the old one
  // never reach it.
  return bind_inbox(zmq_, inbox_endpoint(fmt::format("{}-{}-{}", stage, replica, incarnation)), key());
}

Result<std::unique_ptr<Inbox>> PipelineNetwork::bind_direct(const std::string& stage, uint32_t replica,
                                                            uint64_t incarnation) {
  if (over_hosts_) return bind_inbox(zmq_, fmt::format("tcp://{}:0", listen_), key());
  return bind_inbox(zmq_, inbox_endpoint(fmt::format("{}-{}-{}.direct", stage, replica, incarnation)), key());
}

// On one host the coordinator is never absent.
Result<std::shared_ptr<Outbox>> PipelineNetwork::connect_coordinator() {
  if (links_) return links_->connect();
  return connect_outbox(zmq_, coordinator_endpoint(), {.policy = BeforeConnected::kKeep, .key = key()});
}

Status PipelineNetwork::move_coordinator(const std::string& control) {
  CHECK(links_);  // on one host it has one place
  RETURN_IF_ERROR(check_reachable(control));
  ASSIGN_OR_RETURN(const Endpoint endpoint, parse_endpoint(control));
  RETURN_IF_ERROR(check_far(endpoint, ""));
  return links_->move(control);
}

Result<std::shared_ptr<Outbox>> PipelineNetwork::connect(const std::string& endpoint) {
  // Kept: the receiver's inbox is bound before its endpoint is in any table, so the connection comes at once.
  return connect_outbox(zmq_, endpoint, {.policy = BeforeConnected::kKeep, .key = key()});
}

Result<std::shared_ptr<Outbox>> PipelineNetwork::connect_direct(const std::string& endpoint, int queue_limit) {
  return connect_outbox(zmq_, endpoint, {.policy = BeforeConnected::kRefuse, .key = key(), .queue_limit = queue_limit});
}

wire::Peer PipelineNetwork::self(const std::string& stage, uint32_t replica, uint64_t incarnation) const {
  wire::Peer peer{.stage = stage, .replica = replica, .incarnation = incarnation, .host = host_name()};
  peer.boot = host_id();
  peer.pid = ::getpid();
  return peer;
}

Result<loop::Relays> PipelineNetwork::make_relays(const std::set<std::string>& backends, const RelaySpec& spec) const {
  RelayOptions options;
  if (spec.pool_mib > 0) options.pool_bytes = static_cast<std::size_t>(spec.pool_mib) << 20;
  if (spec.credits > 0) options.credits = spec.credits;
  if (spec.lease_ms > 0) options.lease_ms = spec.lease_ms;
  if (key_) options.secret = key_->bytes();
  // Over hosts alone: otherwise the relays listen at loopback, and the default for a connect suits it.
  if (over_hosts_) {
    options.listen = listen_ + ":0";
    options.connect_timeout_ms = kConnectOverHostsMs;
  }
  loop::Relays out;
  for (const std::string& name : backends) {
    ASSIGN_OR_RETURN(auto relay, make_relay(name, options));
    out.emplace(name, std::move(relay));
  }
  return out;
}

void override_hosts(PipelineSpec& spec, const std::string& control, const std::string& key_file) {
  if (!control.empty()) spec.control = control.find("://") == std::string::npos ? "tcp://" + control : control;
  if (!key_file.empty()) spec.key_file = key_file;
}

std::string join_commands(const PipelineSpec& spec, const std::string& address, const std::string& file,
                          const std::string& more) {
  std::map<std::string, std::string> stages;  // of each host
  for (const StageSpec& stage : spec.stages) {
    for (int replica = 0; replica < stage.replicas && !stage.host.empty(); ++replica) {
      std::string& list = stages[stage.host];
      list += fmt::format("{}{}", list.empty() ? "" : ",", stage.name);
      if (stage.replicas > 1) list += fmt::format(":{}", replica);
    }
  }
  const Result<Endpoint> control = parse_endpoint(spec.control);
  const char* listen = control.ok() && !control->local() ? " --listen ADDRESS" : "";  // of its own
  std::string out;
  for (const auto& [host, names] : stages) {
    out += fmt::format("  on {}: millrace stage --join {} --pipeline {} --stages {}{}{}\n", host,
                       address.empty() ? spec.control : address, file, names, listen, more);
  }
  return out;
}

}  // namespace millrace
