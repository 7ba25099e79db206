#include "pipeline/transfer_port.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// Parts and reports for one server: more than its transfers send at once is kept by them and sent later.
constexpr int kMaxQueuedTransferMessages = 256;

}  // namespace

const StageSpec* transfers_with(const PipelineSpec& spec, const StageSpec& stage) {
  if (!stage.prefill_from.empty()) return spec.find(stage.prefill_from);
  const auto found = std::find_if(spec.stages.begin(), spec.stages.end(),
                                  [&](const StageSpec& other) { return other.prefill_from == stage.name; });
  return found == spec.stages.end() ? nullptr : &*found;
}

const StageSpec* encodes_with(const PipelineSpec& spec, const StageSpec& stage) {
  if (!stage.encode_from.empty()) return spec.find(stage.encode_from);
  const auto found = std::find_if(spec.stages.begin(), spec.stages.end(),
                                  [&](const StageSpec& other) { return other.encode_from == stage.name; });
  return found == spec.stages.end() ? nullptr : &*found;
}

Result<std::shared_ptr<TransferPort>> TransferPort::make(PipelineNetwork& network, const PipelineSpec& spec,
                                                         const StageSpec& other, wire::Peer self, loop::Relays relays) {
  const StageSpec& stage = *spec.find(self.stage);
  auto peers = std::make_shared<transfer::TransferPeers>(static_cast<std::size_t>(other.replicas), other.helps());
  std::shared_ptr<TransferPort> port(new TransferPort(network, other.name, std::move(peers)));
  ASSIGN_OR_RETURN(port->links_.inbox, network.bind_direct(self.stage, self.replica, self.incarnation));
  port->endpoint_ = port->links_.inbox->endpoint();
  // KvWant carries them to the other end, which chooses a relay that both have.
  for (const auto& [name, relay] : relays) self.relays.push_back({name, {relay->address()}});
  port->links_.self = std::move(self);
  port->links_.relays = std::move(relays);
  port->links_.relay = stage.relay.backend;
  return port;
}

// The same table as the stage loop goes by.
void TransferPort::on_peers(const wire::Peers& table) {
  std::vector<transfer::TransferPeers::Replica> replicas(peers_->count());
  for (const wire::Peer& peer : table.peers) {
    // The table is the coordinator's message: a replica beyond the spec's number has no entry here.
    if (peer.stage != other_ || !peer.up || peer.replica >= replicas.size()) continue;
    if (peers_->compute() && !peer.serves) continue;  // it would not answer, or with other weights
    replicas[peer.replica] = {peer.direct_endpoint, peer.incarnation};
  }
  peers_->set(std::move(replicas));
}

Result<transfer::TransferLinks> TransferPort::take_links() {
  // An inbox is read by one thread, so the links are for one worker.
  if (!links_.inbox) return internal_error("the links of the transfers were taken before");
  transfer::TransferLinks links = std::move(links_);
  links.endpoint = endpoint_;
  links.peers = peers_;
  // An endpoint arrives in a message (reply_to), and this process connects only to those that the coordinator's table
  // has: otherwise a message could make it open connections anywhere.
  links.connect = [&network = network_, peers = peers_,
                   other = other_](const std::string& endpoint) -> Result<std::shared_ptr<Outbox>> {
    const auto replicas = peers->replicas();
    const bool known =
        std::any_of(replicas.begin(), replicas.end(), [&](const auto& one) { return one.endpoint == endpoint; });
    if (known && !endpoint.empty()) return network.connect_direct(endpoint, kMaxQueuedTransferMessages);
    return invalid_argument("'{}' is no endpoint of a replica of stage '{}'", quoted_endpoint(endpoint), other);
  };
  return links;
}

OpenTransferLinks TransferPort::slot(const std::shared_ptr<TransferPort>& port) {
  return [port] { return port->take_links(); };
}

}  // namespace millrace
