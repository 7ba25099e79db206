#include "relay/ucx/reader.h"

#include <algorithm>
#include <cstring>

#include "base/xxh3.h"
#include "relay/ucx/pool.h"

namespace millrace::ucx {
namespace {

constexpr std::size_t kCopyBytes = 4u << 20;  // at once; then the thread looks at its peers

}  // namespace

void Reader::start(RelayOp op, const Descriptor& descriptor) {
  auto get = std::make_unique<Get>();
  get->op = op;
  get->descriptor = descriptor;
  get->request = table_.get(op);
  if (get->request == nullptr) return;  // it ended already
  const Result<Peer*> peer = link_.connect(descriptor.instance, descriptor.tail);
  if (!peer.ok()) {
    (void)table_.end(op, peer.status());
    return;
  }
  get->peer = *peer;
  get->segments = cut(get->request->sizes);
  get->left = get->segments.size();
  get->asked_for.assign(get->left, false);
  get->layout = lay_out(get->request->sizes);
  link_.add_interest(**peer);
  Get& kept = *gets_.emplace(op.value, std::move(get)).first->second;
  if ((*peer)->open) ask(kept);
}

void Reader::ask(Get& get) {
  Frame frame{.type = FrameType::kGet};
  frame.flags = get.by_message ? kFlagByMessage : 0;
  frame.get = get.op.value;
  frame.op = get.descriptor.op.value;
  frame.generation = get.descriptor.generation;
  frame.sum = get.descriptor.sizes_hash;
  link_.send(*get.peer, frame);
}

void Reader::on_open(Peer& peer) {
  for (auto& [op, get] : gets_) {
    if (get->peer == &peer) ask(*get);
  }
}

void Reader::release(Get& get, StatusCode code, uint8_t flags) {
  Frame frame{.type = FrameType::kRelease, .code = static_cast<uint8_t>(code), .flags = flags};
  frame.get = get.op.value;
  link_.send(*get.peer, frame);
}

void Reader::detach(Get& get) {
  if (get.peer != nullptr) link_.drop_interest(*get.peer);
  if (get.slot != nullptr) link_.unmap(*get.peer, get.arena);
  get.peer = nullptr;
  get.slot = nullptr;
  if (get.taking == 0) gets_.erase(get.op.value);
}

void Reader::fail(Get& get, Status why) {
  const RelayOp op = get.op;
  if (get.peer->open) release(get, why.code());
  detach(get);
  (void)table_.end(op, std::move(why));
}

void Reader::ended(RelayOp op, StatusCode code) {
  if (code == StatusCode::kOk) return;
  link_.post([this, op, code] {
    const auto at = gets_.find(op.value);
    if (at == gets_.end() || at->second->peer == nullptr) return;  // its end came from here
    if (at->second->peer->open) release(*at->second, code);
    detach(*at->second);
  });
}

void Reader::on_gone(Peer& peer, const Status& why) {
  std::vector<RelayOp> ops;
  for (auto& [op, get] : gets_) {
    if (get->peer == &peer) ops.push_back(get->op);
  }
  for (const RelayOp op : ops) {
    detach(*gets_.at(op.value));
    (void)table_.end(op, why);
  }
}

Reader::Get* Reader::find(Peer& peer, const Frame& frame) {
  const auto at = gets_.find(frame.get);
  return at == gets_.end() || at->second->peer != &peer ? nullptr : at->second.get();
}

std::byte* Reader::part(Get& get, std::size_t index) {
  return direct(get) ? get.request->destination[index].data() : get.memory.get() + get.layout.offsets[index];
}

bool Reader::prepare(Get& get) {
  if (direct(get) || get.memory != nullptr) return true;
  get.memory = allocate(get.layout.bytes);
  if (get.memory != nullptr) return true;
  fail(get, error(StatusCode::kResourceExhausted, "no memory for {} bytes", get.layout.bytes));
  return false;
}

void Reader::on_data(Peer& peer, const Frame& frame, const Payload& payload) {
  Get* get = find(peer, frame);
  if (get == nullptr) return;  // it has ended
  if (frame.place >= get->segments.size() || get->asked_for[frame.place] ||
      get->segments[frame.place].bytes != payload.bytes) {
    table_.count_bad_frame();
    return;
  }
  if (!prepare(*get)) return;
  // Into a caller's memory only as long as it is pinned: an end that comes meanwhile waits for it.
  if (direct(*get) && !table_.pin(get->op)) return;
  const auto index = static_cast<std::size_t>(frame.place);
  const Segment& segment = get->segments[index];
  get->asked_for[index] = true;
  ++get->taking;
  if (payload.rendezvous != nullptr && (frame.flags & kFlagSum) == 0) get->unproved = true;
  std::shared_ptr<std::byte> keep = get->memory;
  std::byte* to = nullptr;
  if (segment.count > 1) {
    keep = allocate(segment.bytes);
    CHECK(keep != nullptr);  // kRunBytes
    to = keep.get();
  } else {
    to = part(*get, segment.first) + segment.offset;
  }
  link_.take(payload, to,
             [this, op = get->op.value, index, frame, to, keep](bool whole) { took(op, index, frame, to, whole); });
}

void Reader::took(uint64_t op, std::size_t segment, const Frame& frame, const std::byte* at, bool whole) {
  Get& get = *gets_.at(op);  // a record stays as long as something is taken
  const bool pinned = direct(get);
  --get.taking;
  if (get.peer == nullptr) {
    if (get.taking == 0) gets_.erase(op);
  } else if (!whole) {
    fail(get, Status(StatusCode::kUnavailable, "ucx: the bytes stopped coming"));
  } else if ((frame.flags & kFlagSum) != 0 && XXH3_64bits(at, frame.bytes) != frame.sum) {
    fail(get, error(StatusCode::kInternal, "segment {} of the put came with a wrong checksum", segment));
  } else {
    if (get.segments[segment].count > 1) scatter(get, get.segments[segment], at);
    if (--get.left == 0) this->whole(get);
  }
  if (pinned) table_.unpin(RelayOp{op});
}

void Reader::scatter(Get& get, const Segment& segment, const std::byte* from) {
  for (uint32_t i = 0; i < segment.count; ++i) {
    const std::size_t size = get.request->sizes[segment.first + i];
    if (size > 0) std::memcpy(part(get, segment.first + i), from, size);
    from += size;
  }
}

void Reader::whole(Get& get) {
  if (!get.unproved) {
    succeed(get);
    return;
  }
  get.proving = true;
  release(get, StatusCode::kOk, kFlagAnswer);
}

void Reader::on_released(Peer& peer, const Frame& frame) {
  Get* get = find(peer, frame);
  if (get == nullptr) return;
  if (!get->proving) {
    table_.count_bad_frame();
  } else if (frame.code == 0) {
    succeed(*get);
  } else {
    fail(*get, Status(StatusCode{frame.code}, "the put ended before its bytes were here"));
  }
}

void Reader::succeed(Get& get) {
  const RelayOp op = get.op;
  if (!get.proving) release(get, StatusCode::kOk);
  std::vector<SharedBytes> parts;
  const std::vector<std::size_t>& sizes = get.request->sizes;
  parts.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) parts.emplace_back(get.memory, part(get, i), sizes[i]);
  if (!direct(get)) parts = table_.lend(std::move(parts));
  detach(get);
  (void)table_.end_get(op, std::move(parts));
}

void Reader::on_refuse(Peer& peer, const Frame& frame, const Payload& payload) {
  Get* get = find(peer, frame);
  if (get == nullptr || payload.rendezvous != nullptr) return;
  const RelayOp op = get->op;
  std::string text(reinterpret_cast<const char*>(payload.data), payload.bytes);
  detach(*get);
  (void)table_.end(op, Status(StatusCode{frame.code}, std::move(text)));
}

void Reader::on_slot(Peer& peer, const Frame& frame, const Payload& payload) {
  Get* get = find(peer, frame);
  if (get == nullptr || payload.rendezvous != nullptr) return;
  if (get->slot != nullptr || get->left != get->segments.size() || get->taking > 0 || get->by_message ||
      frame.generation != get->descriptor.generation) {
    table_.count_bad_frame();
    return;
  }
  const std::string_view key(reinterpret_cast<const char*>(payload.data), payload.bytes);
  get->slot = link_.map(peer, frame.arena, key, frame.place);
  if (get->slot == nullptr) {
    get->by_message = true;
    ask(*get);
    return;
  }
  get->arena = frame.arena;
  if (prepare(*get)) copying_.push_back(get->op.value);
}

bool Reader::copy_some() {
  if (copying_.empty()) return false;
  const uint64_t op = copying_.front();
  copying_.pop_front();
  const auto at = gets_.find(op);
  if (at == gets_.end() || at->second->slot == nullptr) return true;  // it has ended
  Get& get = *at->second;
  const bool pinned = direct(get);
  if (pinned && !table_.pin(get.op)) return true;
  if (!copy_piece(get)) {
    copying_.push_back(op);
  } else if (slot_generation(get.slot) != get.descriptor.generation) {
    fail(get, Status(StatusCode::kUnavailable, "the put ended while its bytes were copied"));
  } else {
    succeed(get);
  }
  if (pinned) table_.unpin(RelayOp{op});
  return true;
}

// kCopyBytes further. True: that was all.
bool Reader::copy_piece(Get& get) {
  const std::vector<std::size_t>& sizes = get.request->sizes;
  const std::byte* content = get.slot + sizeof(SlotHead);
  std::size_t budget = kCopyBytes;
  while (get.part < sizes.size() && budget > 0) {
    const std::size_t bytes = std::min(sizes[get.part] - get.offset, budget);
    if (bytes > 0) {
      std::memcpy(part(get, get.part) + get.offset, content + get.layout.offsets[get.part] + get.offset, bytes);
    }
    get.offset += bytes;
    budget -= bytes;
    if (get.offset < sizes[get.part]) break;
    ++get.part;
    get.offset = 0;
  }
  return get.part == sizes.size();
}

}  // namespace millrace::ucx
