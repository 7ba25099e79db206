#include "app/instance.h"

#include <fmt/format.h>
#include <unistd.h>

#include <random>

#include "base/log.h"

namespace millrace {
namespace {

constexpr int kShutDownMs = 500;  // that stages have to end by themselves

uint64_t random_session() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;  // 0 means none
}

}  // namespace

// The coordinator's way to stages and to the child processes.
class Instance::Env : public CoordinatorEnv {
 public:
  explicit Env(Instance& owner) : owner_(owner) {}
  std::shared_ptr<Outbox> open(const std::string& endpoint) override {
    auto outbox = owner_.network_->connect(endpoint);
    if (outbox.ok()) return std::move(outbox).value();
    LOG_WARNING("{}", outbox.status().message());
    return nullptr;
  }
  void joined(const ReplicaView& replica) override {
    if (owner_.lead_->engine) owner_.lead_->engine->weights()->on_joined(replica.stage, replica.replica);
  }
  void ticked(int64_t now_ms) override {
    if (owner_.lead_->engine) owner_.lead_->engine->tick(now_ms);
  }
  void lost(const ReplicaView& replica, const std::string&) override {
    if (owner_.lead_->processes) owner_.lead_->processes->on_lost(replica);
  }

 private:
  Instance& owner_;
};

Instance::Instance(PipelineSpec spec, Library library) : spec_(std::move(spec)), library_(std::move(library)) {}

Result<std::unique_ptr<Instance>> Instance::lead(PipelineSpec spec, Library library, LeadOptions options) {
  std::unique_ptr<Instance> instance(new Instance(std::move(spec), std::move(library)));
  ReplicasOfProcesses processes = replicas_of_processes(instance->spec_, options.single);
  const bool has_children = processes.size() > processes.count(std::string(kServerProcess));
  instance->lead_ = std::make_unique<Lead>();
  Lead& lead = *instance->lead_;
  lead.keeps_joined = options.keeps_joined;
  // Children remove the folder of a server that was killed; a server without any needs none.
  if (has_children) {
    ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
    lead.run_dir.emplace(std::move(run_dir));
  }
  ASSIGN_OR_RETURN(instance->network_, PipelineNetwork::make(instance->spec_, instance->run_dir(), "", !has_children));
  if (options.coordinator.spec_hash == 0) options.coordinator.spec_hash = instance->spec_.hash();
  RETURN_IF_ERROR(instance->add_coordinator(options.coordinator));
  lead.engine = std::make_unique<CoordinatorEngine>(instance->spec_, instance->library_, *lead.coordinator, lead.relays,
                                                    std::move(options.profile_folder));
  if (options.start) lead.engine->weights()->start_from(*options.start);
  if (const auto here = processes.extract(std::string(kServerProcess)); !here.empty()) {
    ASSIGN_OR_RETURN(instance->host_, StageHost::make(instance->spec_, options.coordinator.spec_hash,
                                                      instance->library_, *instance->network_, here.mapped(),
                                                      uint64_t{1} << kIncarnationBits, std::move(options.spans)));
  }
  if (!processes.empty()) {
    lead.processes = std::make_unique<StageProcesses>(instance->spec_, std::move(processes),
                                                      instance->child_arguments(options.child), *lead.coordinator);
  }
  return instance;
}

Status Instance::add_coordinator(CoordinatorOptions options) {
  ASSIGN_OR_RETURN(auto inbox, network_->bind_coordinator());
  ASSIGN_OR_RETURN(lead_->relays, network_->coordinator_relays(spec_.relay));
  lead_->env = std::make_unique<Env>(*this);
  options.session = random_session();
  if (spec_.lease_ms > 0) options.lease_ms = spec_.lease_ms;
  options.self = network_->self(kCoordinatorStage, 0, 1);
  options.self.endpoint = inbox->endpoint();
  for (const auto& [name, relay] : lead_->relays) options.self.relays.push_back({name, {relay->address()}});
  lead_->payloads = std::make_unique<RelayPayloads>(options.self, lead_->relays, spec_.relay.backend,
                                                    [waker = inbox->waker()] { waker->wake(); });
  lead_->coordinator = std::make_unique<CoordinatorThread>(spec_, library_, std::move(options), *lead_->env,
                                                           *lead_->payloads, std::move(inbox));
  return ok_status();
}

StageProcesses::Arguments Instance::child_arguments(const StageOptions& all) const {
  StageOptions child = all;
  child.run_dir = run_dir();
  child.parent = ::getpid();
  child.join = spec_.control;
  child.key_file = spec_.key_file;
  return [child](const std::string& process, const std::vector<StageReplica>& replicas, uint64_t incarnation) {
    StageOptions one = child;
    one.process = process;
    one.incarnation = incarnation;
    for (const StageReplica& replica : replicas)
      one.stages.push_back(fmt::format("{}:{}", replica.stage, replica.replica));
    return stage_arguments(one);
  };
}

Result<std::unique_ptr<Instance>> Instance::join(PipelineSpec spec, Library library, JoinOptions options) {
  std::unique_ptr<Instance> instance(new Instance(std::move(spec), std::move(library)));
  ASSIGN_OR_RETURN(instance->network_,
                   PipelineNetwork::make(instance->spec_, std::move(options.run_dir), std::move(options.listen)));
  ASSIGN_OR_RETURN(instance->host_,
                   StageHost::make(instance->spec_, options.spec_hash, instance->library_, *instance->network_,
                                   options.replicas, options.incarnation, std::move(options.spans)));
  return instance;
}

Instance::~Instance() { stop(); }

void Instance::start() {
  if (lead_) lead_->thread = std::thread([this] { lead_->coordinator->run(); });
  if (host_) host_->start();
  if (lead_ && lead_->processes) lead_->processes->start();
}

void Instance::move_coordinator(const std::string& control) {
  const Status status = network_->move_coordinator(control);
  if (status.ok()) {
    LOG_INFO("the coordinator is at {} now", control);
  } else {
    LOG_ERROR("the coordinator at {} is not reached: {}", control, status.message());
  }
}

bool Instance::failed() const { return (lead_->processes && lead_->processes->failed()) || !status().ok(); }

void Instance::stop() {
  if (std::exchange(stopped_, true)) return;
  const bool leads = lead_ && lead_->coordinator;
  if (leads) {
    lead_->coordinator->wait_idle(0);
    lead_->coordinator->shut_down(kShutDownMs, !lead_->keeps_joined);
    if (lead_->processes) lead_->processes->stop();
  }
  if (host_) host_->stop();
  if (!leads) return;
  lead_->coordinator->request_stop();
  if (lead_->thread.joinable()) lead_->thread.join();
  lead_->engine->stop();
  for (auto& [name, relay] : lead_->relays) relay->close();
}

}  // namespace millrace
