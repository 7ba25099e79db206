#include "relay/ucx/writer.h"
#include "base/xxh3.h"

#include <cstring>

namespace millrace::ucx {

std::string relay_address(const InstanceId& id) { return "ucx:" + to_hex(id); }

std::string Writer::put(RelayOp op) {
  auto put = std::make_shared<Put>();
  put->op = op;
  put->request = table_.put(op);
  put->sizes = part_sizes(put->request->parts);
  put->segments = cut(put->sizes);
  Descriptor descriptor;
  descriptor.backend = "ucx";
  descriptor.instance = link_.self();
  descriptor.op = op;
  descriptor.tail = link_.address();
  describe_sizes(put->sizes, descriptor);
  put->sizes_hash = descriptor.sizes_hash;
  {
    std::lock_guard lock(mutex_);
    put->generation = next_generation_++;
  }
  descriptor.generation = put->generation;
  if (pool_ != nullptr && descriptor.bytes >= kPoolFromBytes) copy_to_pool(*put);
  std::lock_guard lock(mutex_);
  puts_.emplace(op.value, std::move(put));
  return encode_descriptor(descriptor);
}

void Writer::copy_to_pool(Put& put) {
  const Layout layout = lay_out(put.sizes);
  put.slot = pool_->allocate(layout.bytes);
  if (!put.slot) return;  // by message, then
  std::byte* content = put.slot->address + sizeof(SlotHead);
  for (std::size_t i = 0; i < put.sizes.size(); ++i) {
    if (put.sizes[i] > 0) std::memcpy(content + layout.offsets[i], put.request->parts[i].data(), put.sizes[i]);
  }
  pool_->publish(*put.slot, put.generation);
  put.pooled = true;
}

void Writer::free_bytes(Put& put) {
  if (put.slot) pool_->release(*put.slot);
  put.slot.reset();
}

bool Writer::ended(RelayOp op, const Status& status) {
  std::shared_ptr<Put> put;
  bool free = false;
  {
    std::lock_guard lock(mutex_);
    const auto at = puts_.find(op.value);
    if (at == puts_.end()) return true;
    put = std::move(at->second);
    puts_.erase(at);
    put->ended = true;
    free = put->sending == 0;
    // The slot is free now: who copies from it sees that its generation is another one.
    if (free) free_bytes(*put);
  }
  if (!status.ok()) link_.post([this, op, status] { tell_readers(op, status); });
  return free;
}

void Writer::tell_readers(RelayOp op, const Status& status) {
  for (auto at = serves_.begin(); at != serves_.end();) {
    const auto next = std::next(at);
    if (at->second.put->op == op) {
      refuse(*at->first.first, at->first.second, status);
      close_serve(at, status);
    }
    at = next;
  }
}

void Writer::refuse(Peer& peer, uint64_t get, const Status& why) {
  Frame frame{.type = FrameType::kRefuse, .code = static_cast<uint8_t>(why.code())};
  frame.get = get;
  link_.send(peer, frame, std::string_view(why.message()).substr(0, kMaxErrorText));
}

Status Writer::check(const Peer& peer, const Frame& frame, const std::shared_ptr<Put>& put) const {
  if (put == nullptr) return invalid_argument("put {} is over, or never was", frame.op);
  if (put->generation != frame.generation || put->sizes_hash != frame.sum) {
    return invalid_argument("put {} is not the one that the descriptor names", frame.op);
  }
  const std::string& destination = put->request->destination;
  if (!destination.empty() && destination != relay_address(peer.id)) {
    return error(StatusCode::kInvalidArgument, "put {} is for {}; it was asked for by {}", frame.op, destination,
                 relay_address(peer.id));
  }
  if (put->begun >= put->request->readers && (frame.flags & kFlagByMessage) == 0) {
    return invalid_argument("put {} is for {} readers, which have come", frame.op, put->request->readers);
  }
  return ok_status();
}

void Writer::on_get(Peer& peer, const Frame& frame) {
  std::shared_ptr<Put> put;
  {
    std::lock_guard lock(mutex_);
    if (const auto at = puts_.find(frame.op); at != puts_.end()) put = at->second;
  }
  const Key key{&peer, frame.get};
  auto at = serves_.find(key);
  // A get comes a second time only where the reader could not map the pool.
  const bool again = at != serves_.end() && at->second.put == put && at->second.next == 0;
  if (again != ((frame.flags & kFlagByMessage) != 0) || (at != serves_.end() && !again)) {
    table_.count_bad_frame();
    return;
  }
  if (Status status = check(peer, frame, put); !status.ok()) {
    refuse(peer, frame.get, status);
    return;
  }
  if (!again) {
    ++put->begun;
    link_.add_interest(peer);
    at = serves_.emplace(key, Serve{.put = put, .id = next_serve_++}).first;
  }
  if (!again && put->pooled && peer.id.boot != 0 && peer.id.boot == link_.self().boot) {
    offer_slot(peer, frame.get, *put);
  } else {
    send_some(key);
  }
}

void Writer::offer_slot(Peer& peer, uint64_t get, const Put& put) {
  Frame frame{.type = FrameType::kSlot};
  std::string key;
  {
    std::lock_guard lock(mutex_);
    if (put.ended) return;  // tell_readers() comes
    frame.arena = put.slot->arena;
    frame.place = reinterpret_cast<uint64_t>(put.slot->address);
    key = pool_->key(put.slot->arena);
  }
  frame.get = get;
  frame.generation = put.generation;
  link_.send(peer, frame, key);
}

void Writer::send_some(const Key& key) {
  for (;;) {
    const auto at = serves_.find(key);
    if (at == serves_.end() || at->second.sending >= kSegmentsAtOnce) return;
    if (at->second.next >= at->second.put->segments.size() || !send_segment(key, at->second)) return;
  }
}

bool Writer::send_segment(const Key& key, Serve& serve) {
  const std::shared_ptr<Put> put = serve.put;
  {
    std::lock_guard lock(mutex_);
    if (put->ended) return false;  // tell_readers() comes
    ++put->sending;                // from here on the bytes stay
  }
  const std::size_t index = serve.next++;
  const Segment& segment = put->segments[index];
  ++serve.sending;
  std::shared_ptr<std::byte> gathered;
  std::span<const std::byte> bytes;
  const std::vector<SharedBytes>& parts = put->request->parts;
  if (segment.count == 1) {
    bytes = parts[segment.first].span().subspan(segment.offset, segment.bytes);
  } else {
    gathered = allocate(segment.bytes);
    CHECK(gathered != nullptr);  // kRunBytes
    std::byte* to = gathered.get();
    for (uint32_t i = 0; i < segment.count; ++i) {
      const std::span<const std::byte> part = parts[segment.first + i].span();
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
    bytes = {gathered.get(), segment.bytes};
  }
  Frame frame{.type = FrameType::kData};
  frame.get = key.second;
  frame.place = index;
  if (checksum_) {
    frame.flags = kFlagSum;
    frame.sum = XXH3_64bits(bytes.data(), bytes.size());
  }
  link_.send_bytes(*key.first, frame, bytes, [this, key, id = serve.id, put, gathered](bool) { sent(key, id, put); });
  return true;
}

void Writer::sent(const Key& key, uint64_t id, const std::shared_ptr<Put>& put) {
  bool free = false;
  {
    std::lock_guard lock(mutex_);
    free = --put->sending == 0 && put->ended;
    if (free) free_bytes(*put);
  }
  if (free) table_.let_go(put->op);
  const auto at = serves_.find(key);
  if (at == serves_.end() || at->second.id != id) return;
  // From inside send_some(), whose loop goes on by itself, or later.
  if (at->second.sending-- == kSegmentsAtOnce) send_some(key);
}

void Writer::on_release(Peer& peer, const Frame& frame) {
  const auto at = serves_.find({&peer, frame.get});
  if ((frame.flags & kFlagAnswer) != 0) {
    bool stood = at != serves_.end();
    if (stood) {
      std::lock_guard lock(mutex_);
      stood = !at->second.put->ended;
    }
    Frame answer{.type = FrameType::kReleased,
                 .code = static_cast<uint8_t>(stood ? StatusCode::kOk : StatusCode::kUnavailable)};
    answer.get = frame.get;
    link_.send(peer, answer);
  }
  if (at == serves_.end()) return;  // the put ended first
  const StatusCode code{frame.code};
  close_serve(at, code == StatusCode::kOk
                      ? ok_status()
                      : error(StatusCode::kCancelled, "the reader's get ended with {}", status_code_name(code)));
}

void Writer::close_serve(Serves::iterator at, const Status& status) {
  const std::shared_ptr<Put> put = at->second.put;
  link_.drop_interest(*at->first.first);
  serves_.erase(at);
  if (put->worst.ok()) put->worst = status;
  if (++put->over >= put->request->readers) (void)table_.end_put(put->op, put->worst);
}

void Writer::on_gone(Peer& peer) {
  for (auto at = serves_.lower_bound({&peer, 0}); at != serves_.end() && at->first.first == &peer;) {
    const auto next = std::next(at);
    close_serve(at, peer.why);
    at = next;
  }
}

}  // namespace millrace::ucx
