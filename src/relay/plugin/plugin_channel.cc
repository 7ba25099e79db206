#include "relay/plugin/plugin_channel.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/xxh3.h"

namespace millrace::plugin {

using namespace session;  // NOLINT: this folder is a channel of the session

namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr std::size_t kWhereBytes = 24;  // of a GRANT: offset, span, checksum
// A plugin has no descriptor to wait for, so the loop polls it: often while an answer is due, less often while a reader
// may come for an open put, and rarely else.
constexpr int64_t kActiveNapUs = 50, kWaitingNapUs = 500, kIdleNapUs = 5'000;

uint64_t checksum_of(const std::byte* block, const Layout& layout, uint64_t generation) {
  // Parts only: the padding between them is never written and differs from block to block. The generation is mixed in,
  // so bytes of another put that lay at the same offset do not fit.
  uint64_t sum = generation;
  for (std::size_t i = 0; i < layout.parts(); ++i) {
    sum = XXH3_64bits_withSeed(block + layout.block_offset(i), layout.size(i), sum + 1);
  }
  return sum;
}

}  // namespace

Stored::~Stored() {
  const std::lock_guard lock(memory->mutex);
  memory->extents.release(offset);
}

class PluginChannel::PluginLink final : public Link {
 public:
  PluginLink(PluginChannel& channel, const Instance& to, bool reads)
      : Link(monotonic_ms()), channel_(channel), to_(to), reads_(reads) {}
  // There is no handshake: the blob is all that a peer needs, and one that is not there is found by its silence.
  bool ready() const override { return true; }
  Status send(const Header& header, std::span<const std::byte> payload) override {
    Message message{channel_.core_.instance.random, to_, header, {}, {}};
    // Two relays may read from each other; the flag selects the receiver's link among its two with this instance.
    if (!reads_) message.header.flags |= kFlagWriter;
    message.payload.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
    // The writer learns how to answer from the first REQUEST, or again from a RELEASE after it dropped an idle peer.
    if (carries_blob(header.type)) message.blob = channel_.blob_;
    const std::string bytes = encode_message(message);
    liveness.sent_ms = monotonic_ms();
    // What is not taken now is sent again later: every frame is an answer or is repeated.
    (void)channel_.plugin_.send(channel_.engine_, channel_.peers_.at(to_).handle, bytes.data(), bytes.size());
    return ok_status();
  }

 private:
  PluginChannel& channel_;
  const Instance to_;
  const bool reads_;
};

// ---- the engine -----------------------------------------------------------------------------------------------------

PluginChannel::PluginChannel(Core& core, const millrace_relay_plugin& plugin)
    : core_(core),
      plugin_(plugin),
      half_((core.options.pool_bytes + kSlackBytes + kPageBytes - 1) / kPageBytes * kPageBytes),
      send_(std::make_shared<SendMemory>(half_)),
      receive_(half_, half_) {
  // The two halves of the memory are for puts and for what is read. In one pool, two relays that read from each other
  // could each fill it with puts, and neither could receive the other's.
  traits_.repeats = traits_.hold_grants = traits_.separate_deadlines = traits_.polled = true;
  traits_.farewell_ms = kFarewellMs;
}

PluginChannel::~PluginChannel() = default;

Status PluginChannel::open() {
  const std::string name = to_hex(core_.instance);
  const millrace_relay_config config{.struct_bytes = sizeof(millrace_relay_config),
                                     .name = name.c_str(),
                                     .memory_bytes = 2 * half_,
                                     .listen = core_.options.listen.c_str()};
  std::array<char, 512> reason{};
  if (plugin_.open(&config, &engine_, &memory_, reason.data(), reason.size()) != MILLRACE_RELAY_OK) {
    // The plugin promises a terminated sentence; it is not relied on.
    reason.back() = 0;
    return error(StatusCode::kUnavailable, "relay plugin '{}' does not open: {}", plugin_.name, reason.data());
  }
  blob_.resize(MILLRACE_RELAY_MAX_BLOB);
  std::size_t size = 0;
  if (plugin_.blob(engine_, blob_.data(), blob_.size(), &size) != MILLRACE_RELAY_OK || size == 0 ||
      size > blob_.size()) {
    plugin_.close(engine_);
    return error(StatusCode::kUnavailable, "relay plugin '{}' gave a blob of {} bytes; wanted 1 to {}", plugin_.name,
                 size, blob_.size());
  }
  blob_.resize(size);
  return ok_status();
}

RelayCapabilities PluginChannel::capabilities() const {
  return {.name = plugin_.name,
          .same_process = plugin_.same_process != 0,
          .same_host = plugin_.same_host != 0,
          .across_hosts = plugin_.across_hosts != 0,
          .max_put_bytes = core_.options.pool_bytes};
}

std::string PluginChannel::address_of(const Instance& instance) const {
  InstanceId id;
  id.random = instance;
  return std::string(plugin_.name) + ":" + to_hex(id);
}

// Takes the memory away from puts that are being copied last, because the plugin unmaps it.
bool PluginChannel::shut_down() {
  {
    // Waits for puts that copy now; later ones find `open` false. The plugin unmaps the memory in close(), which is
    // called without the lock: a put must have its answer also where the plugin hangs in it.
    const std::unique_lock lock(send_->in_use);
    send_->open = false;
  }
  plugin_.close(engine_);
  // The plugin has ended all transfers, so the records go without fetched(): Reader::clear() follows.
  reads_.clear();
  links_.clear();
  return true;
}

// ---- puts -----------------------------------------------------------------------------------------------------------

Result<std::string> PluginChannel::store(Put& put) {
  // Shared: puts copy side by side, and only shut_down() excludes them. `mutex` guards the extents alone.
  const std::shared_lock in_use(send_->in_use);
  if (!send_->open) return Status(StatusCode::kUnavailable, "the relay is closed");
  std::optional<uint64_t> offset;
  {
    const std::lock_guard lock(send_->mutex);
    offset = send_->extents.take(put.layout.block_bytes());
  }
  if (!offset) {
    return error(StatusCode::kResourceExhausted, "the relay's pool has no {} bytes in one run",
                 put.layout.block_bytes());
  }
  std::byte* block = at(*offset);
  for (std::size_t i = 0; i < put.layout.parts(); ++i) {
    const SharedBytes& part = put.request->parts[i];
    if (!part.empty()) std::memcpy(block + put.layout.block_offset(i), part.data(), part.size_bytes());
  }
  // Always, whatever RelayOptions::checksum is: a reader that was taken for dead may still read while the memory is
  // used again.
  const uint64_t checksum = checksum_of(block, put.layout, put.generation);
  put.stored = std::make_shared<Stored>(send_, *offset, put.layout.block_bytes(), checksum);
  return blob_;
}

bool PluginChannel::grant(Link&, Put& put, const Header&, std::string& where) {
  // Here by the caller's hold: the put cannot end, so `stored` is set.
  CHECK(put.stored != nullptr);
  const auto& stored = *static_cast<const Stored*>(put.stored.get());
  where.resize(kWhereBytes);
  auto* to = reinterpret_cast<std::byte*>(where.data());
  store_u64(to, stored.offset);
  store_u64(to + 8, stored.span);
  store_u64(to + 16, stored.checksum);
  return true;
}

// ---- links ----------------------------------------------------------------------------------------------------------

LinkUser& PluginChannel::user_of(bool reads) const {
  return reads ? static_cast<LinkUser&>(core_.reader) : static_cast<LinkUser&>(core_.writer);
}

Result<Target> PluginChannel::target_of(const Descriptor& descriptor) const {
  Target target;
  target.instance = descriptor.instance;
  target.key = to_hex(descriptor.instance);
  target.endpoint = descriptor.tail;
  return target;
}

Result<PluginChannel::PluginLink*> PluginChannel::add_link(const Instance& instance, bool reads,
                                                           const std::string& blob) {
  // The two kinds apart, so that unexpected senders do not keep this relay's own gets from their writers.
  const std::size_t most = reads ? kMaxOutbound : kMaxInbound;
  const auto same = [&](const auto& entry) { return entry.first.second == reads; };
  if (static_cast<std::size_t>(std::count_if(links_.begin(), links_.end(), same)) >= most) {
    return error(StatusCode::kResourceExhausted, "the relay plugin '{}' has {} links with {}, the most that it takes",
                 plugin_.name, most, reads ? "writers" : "readers");
  }
  Peer& peer = peers_[instance];
  // One handle for each instance, shared by the links of both directions and by reads that outlive their link.
  if (peer.uses == 0) {
    const int code = plugin_.connect(engine_, blob.data(), blob.size(), &peer.handle);
    if (code != MILLRACE_RELAY_OK) {
      // No record of a peer that was never connected: `uses` of 0 must mean that there is no handle.
      peers_.erase(instance);
      if (code == MILLRACE_RELAY_INVALID) {
        return invalid_argument("the descriptor does not contain how its relay is reached");
      }
      return error(StatusCode::kUnavailable, "the descriptor's relay cannot be reached: code {}", code);
    }
  }
  ++peer.uses;
  auto link = std::make_unique<PluginLink>(*this, instance, reads);
  InstanceId id;
  id.random = instance;
  link->peer = {key_of(id), address_of(instance)};
  link->used_ms = monotonic_ms();
  return (links_[{instance, reads}] = std::move(link)).get();
}

Result<Link*> PluginChannel::connect(const Target& target) {
  ASSIGN_OR_RETURN(PluginLink * link, add_link(target.instance.random, true, target.endpoint));
  return static_cast<Link*>(link);
}

void PluginChannel::release_peer(const Instance& instance) {
  const auto peer = peers_.find(instance);
  CHECK(peer != peers_.end() && peer->second.uses > 0);
  if (--peer->second.uses > 0) return;
  plugin_.disconnect(engine_, peer->second.handle);
  peers_.erase(peer);
}

void PluginChannel::remove_link(Links::iterator at, const Status& why) {
  const auto [instance, reads] = at->first;
  // Destroyed last, as on_lost() names it; the peer's handle goes after it, for on_lost() may still send.
  const std::unique_ptr<PluginLink> link = std::move(at->second);
  links_.erase(at);
  user_of(reads).on_lost(*link, why);
  release_peer(instance);
}

int64_t PluginChannel::check_time(int64_t now_ms) {
  int64_t due_ms = INT64_MAX;
  const int silent_ms = core_.options.silent_ms;
  for (auto at = links_.begin(); at != links_.end();) {
    const auto next = std::next(at);
    PluginLink& link = *at->second;
    if (!user_of(at->first.second).busy(link)) {
      // A later get or REQUEST connects again. Without this a plugin would keep a handle for each peer that ever asked.
      if (now_ms >= link.used_ms + kIdlePeerMs) remove_link(at, Status(StatusCode::kUnavailable, "idle"));
    } else if (link.liveness.dead(now_ms, silent_ms)) {
      link.silent = true;
      remove_link(at, error(StatusCode::kUnavailable, "the peer has been silent for {} ms", silent_ms));
    } else if (link.liveness.ping_due(now_ms, Liveness::ping_every_ms(silent_ms), due_ms)) {
      (void)link.send(Header{.type = FrameType::kPing}, {});
    }
    at = next;
  }
  return due_ms;
}

void PluginChannel::compensate_pause(int64_t now_ms) {
  for (auto& [key, link] : links_) link->liveness.seen_ms = now_ms;
}

// ---- messages -------------------------------------------------------------------------------------------------------

// First messages, then reads: a GRANT that came now begins its read in this turn.
bool PluginChannel::poll() {
  active_ = receive_messages();
  return finish_reads() || active_;
}

int64_t PluginChannel::nap_us() const {
  if (active_ || !reads_.empty()) return kActiveNapUs;
  for (const auto& [key, link] : links_) {
    if (user_of(key.second).busy(*link)) return kActiveNapUs;
  }
  return core_.table.books().puts > 0 ? kWaitingNapUs : kIdleNapUs;
}

bool PluginChannel::receive_messages() {
  std::string bytes(MILLRACE_RELAY_MAX_MESSAGE, '\0');
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    std::size_t size = 0;
    if (plugin_.receive(engine_, bytes.data(), bytes.size(), &size) != MILLRACE_RELAY_OK) return i > 0;
    const Result<Message> message = decode_message(std::string_view(bytes).substr(0, size));
    // A message for an earlier instance at the same endpoint must not reach this one's puts.
    if (message.ok() && message->to == core_.instance.random) {
      on_message(*message);
    } else {
      core_.table.count_bad_frame();
    }
  }
  return true;
}

void PluginChannel::on_message(const Message& message) {
  const Header& header = message.header;
  const bool reads = (header.flags & kFlagWriter) != 0;  // the other side writes
  auto at = links_.find({message.from, reads});
  if (at == links_.end()) {
    if (message.blob.empty()) return;  // of a link that has ended
    // Only REQUEST and RELEASE have a blob, and decode_message() refuses kFlagWriter on them: so `reads` is false here,
    // and the link is found under the same key below.
    if (!add_link(message.from, false, message.blob).ok()) return core_.table.count_bad_frame();
    at = links_.find({message.from, reads});
    CHECK(at != links_.end());
    user_of(reads).on_ready(*at->second);
  }
  PluginLink& link = *at->second;
  link.liveness.seen_ms = monotonic_ms();
  if (header.type == FrameType::kPong) return;
  if (header.type == FrameType::kPing) {
    (void)link.send(Header{.type = FrameType::kPong}, {});
    return;
  }
  const auto payload = std::as_bytes(std::span(message.payload));
  // The link stays: messages name their sender themselves, so a forged one must not end what others have open.
  if (!user_of(reads).on_frame(link, header, payload).ok()) core_.table.count_bad_frame();
}

// ---- reads ----------------------------------------------------------------------------------------------------------

Status PluginChannel::fetch(Link&, const Header&, std::span<const std::byte> where, const Fetch& fetch) {
  if (fetch.layout == nullptr) return ok_status();  // its get is over, or this GRANT came twice
  // The writer's layout must be ours, else the parts would be taken from other offsets of the block.
  if (where.size() != kWhereBytes || load_u64(&where[8]) != fetch.layout->block_bytes()) {
    return internal_error("the writer granted {} bytes; wanted {}", where.size() < 16 ? 0 : load_u64(&where[8]),
                          fetch.layout->block_bytes());
  }
  const uint64_t span = fetch.layout->block_bytes();
  if (span > half_) return error(StatusCode::kResourceExhausted, "{} bytes; at most {} are received", span, half_);
  Read read{.fetch = fetch, .source = load_u64(&where[0]), .checksum = load_u64(&where[16])};
  for (const auto& [key, link] : links_) {
    if (link.get() == fetch.link) read.from = key.first;
  }
  const bool others_wait = std::any_of(reads_.begin(), reads_.end(), [](const Read& one) { return !one.extent; });
  if (!others_wait) RETURN_IF_ERROR(begin_read(read));
  ++peers_.at(read.from).uses;
  reads_.push_back(read);
  return ok_status();
}

// OK also where the memory is short: then it waits until another read ends. The session's quota does not keep that from
// happening: it counts no gets with destinations of their own, and free memory may lie in several runs.
Status PluginChannel::begin_read(Read& read) {
  const uint64_t span = read.fetch.layout->block_bytes();
  // Into registered memory, as plugins write nowhere else; deliver() copies from there.
  const std::optional<uint64_t> extent = receive_.take(span);
  if (!extent) return ok_status();
  const int code = span == 0
                       ? MILLRACE_RELAY_OK
                       : plugin_.read(engine_, peers_.at(read.from).handle, read.source, *extent, span, &read.transfer);
  if (code == MILLRACE_RELAY_OK) {
    read.extent = extent;
    return ok_status();
  }
  receive_.release(*extent);
  if (code == MILLRACE_RELAY_GONE) return Status(StatusCode::kUnavailable, "the writer cannot be reached any more");
  return internal_error("the plugin cannot read what was granted: code {}", code);
}

// In the order in which they came; those that are over end in any case.
void PluginChannel::begin_waiting() {
  bool full = false;
  for (auto at = reads_.begin(); at != reads_.end();) {
    const auto next = std::next(at);
    if (!at->extent && at->abandoned) {
      finish_read(at, Status(StatusCode::kCancelled, "the get is over"));
    } else if (!at->extent && !full) {
      const Status begun = begin_read(*at);
      full = begun.ok() && !at->extent;
      if (!begun.ok()) finish_read(at, begun);
    }
    at = next;
  }
}

void PluginChannel::abandon(RelayOp get) {
  for (Read& read : reads_) {
    if (read.fetch.get != get || std::exchange(read.abandoned, true) || read.fetch.size == 0) continue;
    // Only asks: the extent stays taken until poll() reports the end, as the plugin may write to it until then.
    if (read.extent) plugin_.abandon(engine_, read.transfer);
  }
}

bool PluginChannel::finish_reads() {
  bool any = false;
  for (auto at = reads_.begin(); at != reads_.end();) {
    const auto next = std::next(at);
    const int code = !at->extent                            ? MILLRACE_RELAY_PENDING
                     : at->fetch.layout->block_bytes() == 0 ? MILLRACE_RELAY_OK
                                                            : plugin_.poll(engine_, at->transfer);
    if (code != MILLRACE_RELAY_PENDING) {
      any = true;
      finish_read(at, code == MILLRACE_RELAY_OK ? deliver(*at)
                      : code == MILLRACE_RELAY_GONE
                          ? Status(StatusCode::kUnavailable, "the writer died during the read")
                          : internal_error("the plugin's read failed: code {}", code));
    }
    at = next;
  }
  begin_waiting();
  return any;
}

void PluginChannel::finish_read(std::list<Read>::iterator at, const Status& status) {
  // Erased before fetched(), which may begin or abandon other reads.
  const Read read = *at;
  reads_.erase(at);
  if (read.extent) receive_.release(*read.extent);
  release_peer(read.from);
  core_.reader.fetched(read.fetch, status);
}

Status PluginChannel::deliver(const Read& read) const {
  const std::byte* block = at(*read.extent);
  // The get has had its end; fetched() only erases its record.
  if (read.abandoned) return ok_status();
  if (checksum_of(block, *read.fetch.layout, read.fetch.generation) != read.checksum) {
    return internal_error("the bytes of the put came with a wrong checksum");
  }
  copy_block(core_.table, read.fetch, block);
  return ok_status();
}

}  // namespace millrace::plugin
