// One node's relay of the simulated network.
#include "base/rng.h"
#include "relay/testing/sim/sim_core.h"

namespace millrace {
namespace {

constexpr char kName[] = "sim";

class SimRelay final : public Relay {
 public:
  SimRelay(std::shared_ptr<SimNetwork::Core> core, std::shared_ptr<SimNode> node)
      : core_(std::move(core)), node_(std::move(node)) {}
  ~SimRelay() override { close(); }

  RelayCapabilities capabilities() const override {
    return {.name = kName,
            .same_process = true,
            .mapped_receive = core_->faults.mapped,
            .max_put_bytes = node_->options.pool_bytes};
  }
  std::string address() const override { return node_->address; }

  Result<PutTicket> put(PutRequest request) override {
    RETURN_IF_ERROR(check_put(request, node_->options.pool_bytes));
    if (node_->dead) return Status(StatusCode::kUnavailable, "this node was killed");
    if (core_->draw() < core_->faults.exhausted) {
      return Status(StatusCode::kResourceExhausted, "no credit: a fault of the simulation");
    }
    for (const SharedBytes& part : request.parts) {
      if (part.device() != Device::kHost)
        return Status(StatusCode::kUnsupported, "the simulation knows host memory only");
    }
    SimPut put;
    put.parts = request.parts;
    put.destination = request.destination;
    put.readers = request.readers;
    Descriptor descriptor;
    descriptor.backend = kName;
    descriptor.instance = node_->id;
    describe_sizes(part_sizes(request.parts), descriptor);
    put.sizes_hash = descriptor.sizes_hash;
    const std::size_t bytes = total_bytes(request);
    ASSIGN_OR_RETURN(const RelayOp op, node_->table->open_put(std::move(request), bytes, core_->now));
    const PhiloxBlock block = philox(core_->seed, op.value, 3 + node_->id.pid);
    put.generation = (uint64_t{block[0]} << 32) | block[1];
    descriptor.op = op;
    descriptor.generation = put.generation;
    node_->puts.emplace(op.value, std::move(put));
    node_->table->unpin(op);
    core_->expire_at(*node_, core_->now + node_->options.lease_ms);
    return PutTicket{op, encode_descriptor(descriptor)};
  }

  Result<RelayOp> get(GetRequest request) override {
    RETURN_IF_ERROR(check_get(request));
    if (node_->dead) return Status(StatusCode::kUnavailable, "this node was killed");
    ASSIGN_OR_RETURN(Descriptor descriptor, descriptor_of(request, kName));
    const std::string writer = "sim:" + to_hex(descriptor.instance);
    if (core_->find(writer) == nullptr) return Status(StatusCode::kUnavailable, "the descriptor's node does not exist");
    const int timeout_ms = request.timeout_ms;
    ASSIGN_OR_RETURN(const RelayOp op, node_->table->open_get(std::move(request), core_->now));
    node_->gets[op.value] = {writer, descriptor.op.value};
    node_->table->unpin(op);
    const SimAsk ask{node_->address, op.value, std::move(descriptor)};
    core_->send(
        node_->address, writer, [core = core_.get(), ask](SimNode& target) { core->on_ask(target, ask); },
        [](SimNode& target) { target.table->count_bad_frame(); });
    core_->expire_at(*node_, core_->now + timeout_ms);
    core_->check_alive(*node_, writer);  // it may be dead already
    return op;
  }

  void cancel(RelayOp op) override { node_->table->cancel(op); }
  void cleanup(ReqId request) override { node_->table->cleanup(request); }
  RelayBooks books() const override { return node_->table->books(); }
  void close() override { node_->table->close(); }

 private:
  const std::shared_ptr<SimNetwork::Core> core_;
  const std::shared_ptr<SimNode> node_;
};

}  // namespace

std::unique_ptr<Relay> make_sim_relay(std::shared_ptr<SimNetwork::Core> core, std::shared_ptr<SimNode> node) {
  return std::make_unique<SimRelay>(std::move(core), std::move(node));
}

}  // namespace millrace
