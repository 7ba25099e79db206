#include "pipeline/stage_host.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "pipeline/chain_port.h"
#include "pipeline/transfer_port.h"

namespace millrace {
namespace {

Result<StageReplica> parse_replica(const std::string& text, const PipelineSpec& spec) {
  const std::size_t colon = text.find(':');
  StageReplica out{.stage = text.substr(0, colon)};
  const StageSpec* stage = spec.find(out.stage);
  if (stage == nullptr) {
    return invalid_argument("there is no stage '{}'; wanted one of the pipeline '{}'", out.stage.substr(0, 64),
                            spec.name);
  }
  if (colon == std::string::npos) return out;
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  // Digits alone, to the end: "1x" and "-1" are no replicas.
  const auto [rest, code] = std::from_chars(begin, end, out.replica);
  if (code != std::errc() || rest != end || out.replica >= static_cast<uint32_t>(stage->replicas)) {
    return invalid_argument("replica '{}' of stage '{}'; wanted 0 to {}", std::string(begin, end).substr(0, 64),
                            out.stage, stage->replicas - 1);
  }
  return out;
}

// Which of how many replicas of its stage, and of the one that computes prompts for it, share this machine. Those of
// the server's host are all there; of others, a process that joined knows its own.
void set_share(StageLoopConfig& config, const PipelineSpec& spec, const StageReplica& replica,
               const std::vector<StageReplica>& here) {
  // The stage that computes prompts and the one that it computes them for run at the same time, so they divide the
  // machine's processors.
  const StageSpec* partner = transfers_with(spec, config.spec);
  if (partner != nullptr && partner->host != config.spec.host) partner = nullptr;
  const auto replicas_here = [&](const StageSpec& stage, uint32_t below) {
    return static_cast<uint32_t>(std::count_if(here.begin(), here.end(), [&](const StageReplica& other) {
      return other.stage == stage.name && other.replica < below;
    }));
  };
  const bool all = config.spec.host.empty();
  const auto count = [&](const StageSpec& stage) {
    const auto replicas = static_cast<uint32_t>(stage.replicas);
    return all ? replicas : replicas_here(stage, replicas);
  };
  config.nth = all ? replica.replica : replicas_here(config.spec, replica.replica);
  // The generating replicas first, then these: the numbers of all on this host differ.
  if (partner != nullptr && config.spec.computes_prompts()) config.nth += count(*partner);
  config.of = static_cast<int>(count(config.spec) + (partner != nullptr ? count(*partner) : 0));
}

// Of all replicas that a trainer sends weights, in the file's order.
uint32_t weights_rank(const PipelineSpec& spec, const Library& library, const StageReplica& replica) {
  // The same sequence as in AdminCommands::rank_of(): the coordinator and the replicas compute a rank each for itself.
  uint32_t rank = replica.replica;
  for (const StageSpec& stage : spec.stages) {
    if (stage.name == replica.stage) break;
    if (library.with_weights.contains(stage.worker)) rank += static_cast<uint32_t>(stage.replicas);
  }
  return rank;
}

}  // namespace

uint64_t incarnation_of_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto us = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  // Seconds where a supervisor's count would be, microseconds (below 2^20) under them: newer than any start a second
  // ago.
  return (us / 1'000'000) << kIncarnationBits | us % 1'000'000;
}

Result<std::vector<StageReplica>> parse_replicas(const std::vector<std::string>& texts, const PipelineSpec& spec) {
  std::vector<StageReplica> replicas;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(StageReplica replica, parse_replica(text, spec));
    for (const StageReplica& other : replicas) {
      if (other.stage == replica.stage && other.replica == replica.replica) {
        return invalid_argument("--stages names '{}' twice; wanted it once", text.substr(0, 64));
      }
    }
    replicas.push_back(std::move(replica));
  }
  if (replicas.empty()) return invalid_argument("--stages is empty; wanted names of stages, with commas between");
  return replicas;
}

Result<std::unique_ptr<StageHost>> StageHost::make(const PipelineSpec& spec, uint64_t spec_hash, const Library& library,
                                                   PipelineNetwork& network, const std::vector<StageReplica>& replicas,
                                                   uint64_t incarnation, std::shared_ptr<SpanSink> spans) {
  // On an error below it goes with the stages that were made: none of them has a thread yet.
  std::unique_ptr<StageHost> host(new StageHost());
  host->spans_ = std::move(spans);
  for (const StageReplica& replica : replicas) {
    const std::string prefix = fmt::format("stage '{}'", replica.stage);
    auto config = make_loop_config(spec.stages, spec.entry, replica.stage);
    if (!config.ok()) return config.status().with_prefix(prefix);
    config->self = network.self(replica.stage, replica.replica, incarnation);
    config->spec_hash = spec_hash;
    set_share(*config, spec, replica, replicas);
    config->weights_rank = weights_rank(spec, library, replica);
    RETURN_IF_ERROR(host->add(std::move(config).value(), library, network, spec).with_prefix(prefix));
  }
  return host;
}

Status StageHost::add(StageLoopConfig config, const Library& library, PipelineNetwork& network,
                      const PipelineSpec& spec) {
  StageLoopStageEnv env;
  // First the inbox: its endpoint goes into the registration, and its waker into the subscription.
  ASSIGN_OR_RETURN(env.inbox, network.bind_stage(config.self.stage, config.self.replica, config.self.incarnation));
  ASSIGN_OR_RETURN(env.coordinator, network.connect_coordinator());
  ASSIGN_OR_RETURN(env.relays, network.relays(config.spec.relay));
  // The network outlives the host, see make().
  env.connect = [&network](const wire::Peer& peer) { return network.connect(peer.endpoint); };
  if (config.spec.layers) {
    ASSIGN_OR_RETURN(auto port,
                     ChainPort::make(network, spec, {config.self.stage, config.self.replica}, config.self.incarnation));
    config.self.direct_endpoint = port->endpoint();
    env.chain = ChainPort::slot(port);
    env.on_peers = [port](const wire::Peers& table) { port->on_peers(table); };
    env.on_lease_lost = [port] { port->on_lease_lost(); };
  } else if (const StageSpec* pages = transfers_with(spec, config.spec), *features = encodes_with(spec, config.spec);
             pages != nullptr || features != nullptr) {
    const StageSpec& other = pages != nullptr ? *pages : *features;
    ASSIGN_OR_RETURN(auto port, TransferPort::make(network, spec, other, config.self, env.relays));
    config.self.direct_endpoint = port->endpoint();
    (pages != nullptr ? env.transfers : env.features) = TransferPort::slot(port);
    env.on_peers = [port](const wire::Peers& table) { port->on_peers(table); };
  }
  env.spans = spans_;
  config.self.endpoint = env.inbox->endpoint();
  config.reply_to = config.self.endpoint;
  config.coordinator.stage = kCoordinatorStage;  // the rest is in the table of peers
  // One that froze may find that another process has its place, with an incarnation of its own start: it waits then.
  if (!config.spec.host.empty()) {
    env.next_incarnation = [](uint64_t last) { return std::max(last + 1, incarnation_of_now()); };
  }
  // A copy of the pointers: stop() closes the relays behind the stages' threads, which use them to the end.
  relays_.push_back(env.relays);
  ASSIGN_OR_RETURN(auto stage, StageLoopStage::make(std::move(config), library, std::move(env)));
  stages_.push_back(std::move(stage));
  return ok_status();
}

StageHost::~StageHost() { stop(); }

void StageHost::start() {
  for (auto& stage : stages_) {
    threads_.emplace_back([this, stage = stage.get()] {
      stage->run();
      {
        std::lock_guard lock(status_mutex_);
        if (status_.ok()) status_ = stage->end_status();
      }
      ++ended_;  // last: ended() is true only when status() has the reason
    });
  }
}

Status StageHost::status() const {
  std::lock_guard lock(status_mutex_);
  return status_;
}

void StageHost::leave() {
  for (auto& stage : stages_) stage->request_leave();
}

void StageHost::drain(int64_t limit_ms) {
  for (auto& stage : stages_) stage->request_drain(limit_ms);
}

void StageHost::stop() {
  // All first, then the joins: the stages end at the same time.
  for (auto& stage : stages_) stage->request_stop();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  for (loop::Relays& relays : relays_) {
    // Behind the joins: a loop that ends still cancels its puts and gets.
    for (auto& [name, relay] : relays) relay->close();
  }
}

}  // namespace millrace
