#include "relay/plugin/plugin_relay.h"

#include <array>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "base/rng.h"
#include "relay/plugin/plugin_core.h"
#include "relay/plugin/plugin_library.h"
#include "relay/ticker.h"

namespace millrace {
namespace {

class PluginRelay final : public Relay {
 public:
  explicit PluginRelay(std::shared_ptr<PluginCore> core) : core_(std::move(core)) {
    // The thread keeps the core alive: it may have to be left behind.
    engine_ = std::thread([core = core_] { core->run(); });
    ticker_ = std::make_unique<Ticker>([this] { return core_->table.expire(relay_now_ms()); });
  }
  ~PluginRelay() override { close(); }

  RelayCapabilities capabilities() const override {
    const millrace_relay_plugin& p = *core_->plugin;
    return {.name = core_->name,
            .same_process = p.same_process != 0,
            .same_host = p.same_host != 0,
            .across_hosts = p.across_hosts != 0,
            .max_put_bytes = core_->options.pool_bytes};
  }
  std::string address() const override { return core_->name + ":" + to_hex(core_->id); }

  Result<PutTicket> put(PutRequest request) override {
    RETURN_IF_ERROR(check_put(request, core_->options.pool_bytes));
    for (const SharedBytes& part : request.parts) {
      if (part.device() != Device::kHost) {
        return Status(StatusCode::kUnsupported, "this relay takes host memory only");
      }
    }
    const std::vector<SharedBytes> parts = request.parts;
    const std::vector<std::size_t> sizes = part_sizes(parts);
    const PartLayout layout = lay_out(sizes);
    PluginPut put;
    put.destination = request.destination;
    put.readers = request.readers;
    put.span = layout.span;
    const std::size_t bytes = total_bytes(request);
    ASSIGN_OR_RETURN(const RelayOp op, core_->table.open_put(std::move(request), bytes, relay_now_ms()));
    Descriptor descriptor;
    descriptor.backend = core_->name;
    descriptor.instance = core_->id;
    descriptor.op = op;
    describe_sizes(sizes, descriptor);
    descriptor.generation = put.generation = generation_of(op);
    descriptor.tail = core_->blob;
    put.sizes_hash = descriptor.sizes_hash;
    if (const Status copied = copy_in(parts, sizes, layout, put); !copied.ok()) {
      core_->table.forget(op);
      return copied;
    }
    {
      std::lock_guard lock(core_->mutex);
      core_->puts.emplace(op.value, std::move(put));
    }
    core_->table.unpin(op);
    ticker_->wake();
    return PutTicket{op, encode_descriptor(descriptor)};
  }

  Result<RelayOp> get(GetRequest request) override {
    RETURN_IF_ERROR(check_get(request));
    PluginGet get;
    ASSIGN_OR_RETURN(get.descriptor, descriptor_of(request, core_->name));
    if (get.descriptor.bytes > core_->options.pool_bytes) {
      return error(StatusCode::kTooLarge, "the put has {} bytes; this relay receives {} at most", get.descriptor.bytes,
                   core_->options.pool_bytes);
    }
    for (const std::size_t size : request.sizes) {
      // The sum may have overflowed.
      if (size > core_->options.pool_bytes) return invalid_argument("a part of the put has {} bytes", size);
    }
    get.sizes = request.sizes;
    get.layout = lay_out(get.sizes);
    ASSIGN_OR_RETURN(get.op, core_->table.open_get(std::move(request), relay_now_ms()));
    const RelayOp op = get.op;
    {
      std::lock_guard lock(core_->mutex);
      core_->new_gets.push_back(std::move(get));
    }
    core_->table.unpin(op);
    core_->wake.notify_all();
    ticker_->wake();
    return op;
  }

  void cancel(RelayOp op) override { core_->table.cancel(op); }
  void cleanup(ReqId request) override { core_->table.cleanup(request); }
  RelayBooks books() const override { return core_->table.books(); }

  void close() override {
    std::lock_guard once(closing_);
    if (!engine_.joinable()) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kRelayCloseMs);
    core_->table.close();
    ticker_->stop();
    bool stopped = false;
    {
      std::unique_lock lock(core_->mutex);
      core_->stopping = true;
      stopped = core_->wake.wait_until(lock, until, [this] { return core_->stopped; });
    }
    if (stopped) {
      engine_.join();
      return;
    }
    LOG_WARNING("relay plugin '{}' did not close within {} ms and is left behind", core_->name, kRelayCloseMs);
    engine_.detach();
  }

 private:
  uint64_t generation_of(RelayOp op) const {
    uint64_t seed = 0;
    std::memcpy(&seed, core_->id.random.data(), sizeof(seed));
    const PhiloxBlock block = philox(seed, op.value);
    return (uint64_t{block[0]} << 32) | block[1];
  }

  Status copy_in(const std::vector<SharedBytes>& parts, const std::vector<std::size_t>& sizes, const PartLayout& layout,
                 PluginPut& put) {
    std::shared_lock alive(core_->in_use);
    {
      std::lock_guard lock(core_->mutex);
      if (core_->stopped) return Status(StatusCode::kUnavailable, "the relay is closed");
      const std::optional<uint64_t> range = core_->send_pool.take(layout.span);
      if (!range) {
        return error(StatusCode::kResourceExhausted, "the relay's pool has no {} bytes in one piece", layout.span);
      }
      put.offset = *range;
    }
    std::byte* base = core_->at(put.offset);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (sizes[i] > 0) std::memcpy(base + layout.offsets[i], parts[i].data(), sizes[i]);
    }
    put.checksum = parts_checksum(base, layout, sizes, put.generation);
    return ok_status();
  }

  const std::shared_ptr<PluginCore> core_;
  std::mutex closing_;
  std::thread engine_;
  std::unique_ptr<Ticker> ticker_;
};

}  // namespace

Result<std::unique_ptr<Relay>> make_plugin_relay(const millrace_relay_plugin* plugin, const RelayOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  auto core = std::make_shared<PluginCore>(plugin, options);
  const std::string name = to_hex(core->id);
  const uint64_t half = (options.pool_bytes + kPluginSlackBytes + 4095) / 4096 * 4096;
  const millrace_relay_config config{.struct_bytes = sizeof(millrace_relay_config),
                                     .name = name.c_str(),
                                     .memory_bytes = 2 * half,
                                     .listen = options.listen.c_str()};
  std::array<char, 512> reason{};
  if (plugin->open(&config, &core->engine, &core->memory, reason.data(), reason.size()) != MILLRACE_RELAY_OK) {
    reason.back() = 0;
    return error(StatusCode::kUnavailable, "relay plugin '{}' does not open: {}", plugin->name, reason.data());
  }
  std::string blob(MILLRACE_RELAY_MAX_BLOB, '\0');
  std::size_t size = 0;
  if (plugin->blob(core->engine, blob.data(), blob.size(), &size) != MILLRACE_RELAY_OK || size == 0 ||
      size > blob.size()) {
    plugin->close(core->engine);
    return error(StatusCode::kUnavailable, "relay plugin '{}' says nothing of how it is reached", plugin->name);
  }
  core->blob = blob.substr(0, size);
  return std::unique_ptr<Relay>(std::make_unique<PluginRelay>(std::move(core)));
}

Result<std::unique_ptr<Relay>> make_plugin_relay(const std::string& name, const RelayOptions& options) {
  ASSIGN_OR_RETURN(const millrace_relay_plugin* plugin, load_plugin(plugin_path(options.plugin_dir, name)));
  return make_plugin_relay(plugin, options);
}

}  // namespace millrace
