// Messages, and the bytes of puts: pushed as active messages, or copied out of a shared pool.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/xxh3.h"
#include "relay/ucx/ucx_channel.h"
#include "relay/ucx/ucx_link.h"

namespace millrace::ucx {

using namespace session;  // NOLINT: this folder is a channel of the session

namespace {

constexpr int kMaxProgress = 64;              // calls of UCX's in one turn
constexpr std::size_t kCopyBytes = 4u << 20;  // at once; then the thread reads its messages
constexpr std::size_t kWhereBytes = 16;       // of a GRANT, before the key: arena, address
constexpr std::size_t kKeyPadding = 4096;     // zeros behind an arena's key, whose lengths UCX takes as they are
static_assert(kWhereBytes + kMaxKeyBytes <= kMaxGrantBytes);

// A put's slot; the pool outlives it. The destructor releases the slot, so there is one object for each.
struct Stored {
  Stored(std::shared_ptr<Pool> pool_in, const Pool::Slot& slot_in) : pool(std::move(pool_in)), slot(slot_in) {}
  Stored(const Stored&) = delete;
  Stored& operator=(const Stored&) = delete;
  ~Stored() { pool->release(slot); }

  const std::shared_ptr<Pool> pool;
  const Pool::Slot slot;
};

}  // namespace

// One send or receive that UCX works on.
struct UcxChannel::Transfer {
  UcxChannel* channel = nullptr;
  Head head;
  std::string payload;  // of a control frame; or the small parts of a DATA frame
  std::function<void(bool)> done;
  UcxLink* link = nullptr;  // of a send: it stays until the transfer ends
  bool control = false;     // it counts in the link's control_bytes
};

// ---- sending --------------------------------------------------------------------------------------------------------

Status UcxChannel::send(UcxLink& link, const Header& header, std::string payload) {
  if (link.gone) return ok_status();  // dropped: on_lost() is about to come
  const std::size_t bytes = sizeof(Head) + payload.size();
  if (link.control_bytes + bytes > kMaxControlBytes) {
    // UCX takes each frame and keeps it until the peer reads.
    Status full = error(StatusCode::kUnavailable, "ucx: {} reads nothing: {} bytes of control frames wait, at most {}",
                        to_hex(link.id), link.control_bytes, kMaxControlBytes);
    fail(link, full);
    return full;
  }
  link.control_bytes += bytes;
  auto transfer = std::make_unique<Transfer>();
  transfer->control = true;
  // The transfer owns the payload's bytes, because UCX may send them after this call.
  transfer->payload = std::move(payload);
  const auto content = std::as_bytes(std::span(transfer->payload));
  start_send(link, header, content, std::move(transfer));
  return ok_status();
}

// The bytes stay as they are until `owned->done`, which comes on this thread, perhaps before this returns.
void UcxChannel::start_send(UcxLink& link, Header header, std::span<const std::byte> bytes,
                            std::unique_ptr<Transfer> owned) {
  if (link.gone) {
    if (owned->done) owned->done(false);
    return;
  }
  Transfer* transfer = owned.release();
  transfer->channel = this;
  transfer->link = &link;
  ++link.transfers;
  header.length = static_cast<uint32_t>(bytes.size());
  // Two relays may read from each other: the flag selects the receiver's link among its two with this instance.
  if (link.incoming) header.flags |= kFlagWriter;
  // The head lives in the transfer too: UCX 1.13 has no flag to copy it and reads it until the send is complete.
  transfer->head = {core_.instance.random, encode(header)};
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxChannel::on_sent;
  params.user_data = transfer;
  if (header.type == FrameType::kHello) {  // the other side sees over which endpoint it came
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY;
  }
  link.liveness.sent_ms = monotonic_ms();
  ++in_flight_;
  ucs_status_ptr_t request =
      api_.ucp_am_send_nbx(link.ep, kMessageId, &transfer->head, sizeof(Head), bytes.data(), bytes.size(), &params);
  // A request: on_sent() follows, also after a forced close. Otherwise no callback comes, and the transfer ends here.
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request)) {
    fail(link, error(StatusCode::kUnavailable, "ucx: sending to {}: {}", to_hex(link.id),
                     api_.ucs_status_string(UCS_PTR_STATUS(request))));
  }
  finish(transfer, UCS_PTR_STATUS(request));
}

void UcxChannel::finish(Transfer* transfer, ucs_status_t status) {
  CHECK(in_flight_ > 0);
  --in_flight_;
  const std::unique_ptr<Transfer> owned(transfer);
  if (UcxLink* link = owned->link; link != nullptr) {
    CHECK(link->transfers > 0);
    --link->transfers;
    if (owned->control) link->control_bytes -= sizeof(Head) + owned->payload.size();
  }
  if (owned->done) owned->done(status == UCS_OK);
}

void UcxChannel::on_sent(void* request, ucs_status_t status, void* transfer) {
  auto* mine = static_cast<Transfer*>(transfer);
  UcxChannel& channel = *mine->channel;
  channel.finish(mine, status);
  channel.api_.ucp_request_free(request);
}

void UcxChannel::on_taken(void* request, ucs_status_t status, std::size_t, void* transfer) {
  on_sent(request, status, transfer);
}

void UcxChannel::flush() {
  // A send that ends within start_send() puts its link on the list again.
  while (!pushing_.empty()) {
    for (UcxLink* link : std::exchange(pushing_, {})) push(*link);
  }
}

void UcxChannel::push(UcxLink& link) {
  Outgoing out;
  // Bounded: each DATA frame holds its put, and a slow reader must not hold all that it asked for.
  while (!link.gone && link.sending < kSegmentsAtOnce && core_.writer.next_data(link, out)) {
    send_data(link, std::move(out));
    out = {};
  }
}

// Straight from the part where the frame is a range of one, else from a contiguous copy.
void UcxChannel::send_data(UcxLink& link, Outgoing out) {
  auto transfer = std::make_unique<Transfer>();
  const std::size_t size = out.header.length;
  std::array<iovec, 64> ranges{};
  std::span<const std::byte> bytes;
  // The layout cuts frames so that a part over kAloneBytes shares none; a copy is at most kPackedBytes.
  if (size > 0 && out.put->map.fill(out.header.offset, size, std::span(ranges).first(1)) == 1 &&
      ranges[0].iov_len == size) {
    bytes = {static_cast<const std::byte*>(ranges[0].iov_base), size};
  } else {
    transfer->payload.reserve(size);
    while (transfer->payload.size() < size) {
      const std::size_t done = transfer->payload.size();
      const std::size_t count = out.put->map.fill(out.header.offset + done, size - done, ranges);
      for (std::size_t i = 0; i < count; ++i) {
        transfer->payload.append(static_cast<const char*>(ranges[i].iov_base), ranges[i].iov_len);
      }
    }
    bytes = {reinterpret_cast<const std::byte*>(transfer->payload.data()), size};
  }
  // Summed before the send, while the put is open for certain: a rendezvous that reads the bytes after its end is found
  // out.
  if ((out.header.flags & kFlagChecksum) != 0) out.header.extra = XXH3_64bits(bytes.data(), bytes.size());
  ++link.sending;
  // Shared because std::function copies what it holds; there is one owner in fact.
  auto hold = std::make_shared<Hold>(std::move(out.put));
  transfer->done = [this, to = &link, hold](bool) {
    hold->release();
    --to->sending;
    if (!to->gone) push_soon(*to);
  };
  start_send(link, out.header, bytes, std::move(transfer));
}

// ---- receiving ------------------------------------------------------------------------------------------------------

ucs_status_t UcxChannel::on_message(void* self, const void* head_bytes, std::size_t head_size, void* data,
                                    std::size_t bytes, const ucp_am_recv_param_t* param) {
  UcxChannel& channel = *static_cast<UcxChannel*>(self);
  Head head;
  if (head_size != sizeof(Head)) {
    channel.core_.table.count_bad_frame();
    return UCS_OK;
  }
  std::memcpy(&head, head_bytes, sizeof(head));
  const Result<Header> header = decode(head.header);
  // Not a reason to break a link: the sender is not known yet, and any process that reaches the port can send this.
  if (!header.ok() || header->length != bytes) {
    channel.core_.table.count_bad_frame();
    return UCS_OK;
  }
  Payload payload{static_cast<const std::byte*>(data), bytes};
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) payload.reply = param->reply_ep;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) payload.rendezvous = data;
  channel.handle(head, *header, payload);
  // With UCS_OK UCX drops the message. A rendezvous that was not taken ends well at its sender; the session's RELEASE
  // and REFUSE are what counts.
  return payload.taken ? UCS_INPROGRESS : UCS_OK;
}

void UcxChannel::handle(const Head& head, const Header& header, Payload& payload) {
  if (header.type == FrameType::kHello) return greeted(head, header, payload);
  // By the name in the message, as UCX does not report over which endpoint a message came unless its sender pays for
  // it.
  const Names& names = (header.flags & kFlagWriter) != 0 ? outgoing_ : incoming_;
  const auto at = names.find(head.from);
  if (at == names.end() || at->second->gone) return;
  UcxLink& link = *at->second;
  link.liveness.seen_ms = monotonic_ms();
  switch (header.type) {
    case FrameType::kWelcome:
      link.id.boot = header.extra;
      if (!link.incoming && !std::exchange(link.open, true)) core_.reader.on_ready(link);
      return;
    case FrameType::kPing:
      return (void)send(link, Header{.type = FrameType::kPong}, {});
    case FrameType::kPong:
      return;
    case FrameType::kBye:
      return fail(link, Status(StatusCode::kUnavailable, "the other relay was closed"));
    case FrameType::kData:
      // A reader sends no DATA: as any other frame it goes to the writer, which answers with an error.
      if (!link.incoming) return on_data(link, header, payload);
      [[fallthrough]];
    default:
      // Control frames are small enough to be eager; of a rendezvous the bytes are not here and `data` is no address.
      if (payload.rendezvous != nullptr || !link.open) return core_.table.count_bad_frame();
      const Status handled = user_of(link).on_frame(link, header, {payload.data, payload.bytes});
      if (handled.ok()) return;
      core_.table.count_bad_frame();
      fail(link, handled);
  }
}

// Into a caller's memory only while it is pinned, so that an end which comes meanwhile waits for the transport.
void UcxChannel::on_data(UcxLink& link, const Header& header, Payload& payload) {
  Result<std::optional<Fetch>> begun = core_.reader.begin_fetch(link, header);
  if (!begun.ok()) {
    core_.table.count_bad_frame();
    return fail(link, begun.status());
  }
  if (!*begun) return;  // its get is over
  // From here on the get's record and memory stay until fetched(), which every path below reaches once.
  const Fetch fetch = **begun;
  const bool pinned = fetch.landing->direct;
  if (pinned && !core_.table.pin(fetch.get)) {
    return core_.reader.fetched(fetch, Status(StatusCode::kCancelled, "the get is over"));
  }
  iovec range{};
  std::shared_ptr<Buffer> contiguous;
  std::byte* to = nullptr;
  if (fetch.size > 0 && fetch.landing->into.fill(fetch.offset, fetch.size, {&range, 1}) == 1 &&
      range.iov_len == fetch.size) {
    to = static_cast<std::byte*>(range.iov_base);
  } else {
    contiguous = std::make_shared<Buffer>(fetch.size);
    to = contiguous->data();
  }
  // An eager message has its bytes with it. A rendezvous reads the writer's memory, perhaps when the writer already
  // takes the transfer for over; without a checksum only RELEASED shows that the put was still open.
  const bool unproved = payload.rendezvous != nullptr && (header.flags & kFlagChecksum) == 0;
  take(payload, to, [this, fetch, header, pinned, contiguous, to, unproved](bool complete) {
    Status status;
    if (!complete) {
      status = Status(StatusCode::kUnavailable, "ucx: the bytes stopped coming");
    } else if ((header.flags & kFlagChecksum) != 0 && XXH3_64bits(to, fetch.size) != header.extra) {
      status = internal_error("bytes [{}, +{}) of the put came with a wrong checksum", fetch.offset, fetch.size);
    } else if (contiguous != nullptr) {
      std::array<iovec, 64> ranges{};
      for (uint64_t done = 0; done < fetch.size;) {
        const std::size_t count = fetch.landing->into.fill(fetch.offset + done, fetch.size - done, ranges);
        for (std::size_t i = 0; i < count; ++i) {
          std::memcpy(ranges[i].iov_base, to + done, ranges[i].iov_len);
          done += ranges[i].iov_len;
        }
      }
    }
    // First the session, then the pin: unpin() may run the caller's `done`, after which its memory is not ours to write
    // to.
    core_.reader.fetched(fetch, status, unproved);
    if (pinned) core_.table.unpin(fetch.get);
  });
}

void UcxChannel::take(Payload& payload, std::byte* to, std::function<void(bool)> done) {
  if (payload.rendezvous == nullptr) {
    if (payload.bytes > 0) std::memcpy(to, payload.data, payload.bytes);
    done(true);
    return;
  }
  // Set before the receive: UCX must keep the message until the transfer ends.
  payload.taken = true;
  auto* transfer = new Transfer{this, {}, {}, std::move(done)};
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &UcxChannel::on_taken;
  params.user_data = transfer;
  ++in_flight_;
  ucs_status_ptr_t request = api_.ucp_am_recv_data_nbx(worker_, payload.rendezvous, to, payload.bytes, &params);
  if (!UCS_PTR_IS_PTR(request)) finish(transfer, UCS_PTR_STATUS(request));
}

bool UcxChannel::poll() {
  bool any = false;
  // Bounded, so that deadlines, copies and posted work have their turn under a steady stream of messages.
  for (int i = 0; i < kMaxProgress && api_.ucp_worker_progress(worker_) != 0; ++i) any = true;
  any = copy_some() || any;
  // After UCX's callbacks have returned; see fail().
  if (!failed_.empty()) close_failed();
  (void)reap();
  return any;
}

// ---- the pool -------------------------------------------------------------------------------------------------------

// A put whose bytes are few, or for which the pool has no space, is pushed from its parts.
Result<std::string> UcxChannel::store(Put& put) {
  // The tail is the same in each case: whether the reader may map the put is decided by grant(), when the reader
  // is known.
  if (pool_ == nullptr || put.map.total() < kPoolFromBytes) return endpoint_;
  const std::optional<Pool::Slot> slot = pool_->allocate(put.layout.block_bytes());
  if (!slot) return endpoint_;
  std::byte* content = slot->address + sizeof(SlotHead);
  for (std::size_t i = 0; i < put.layout.parts(); ++i) {
    const SharedBytes& part = put.request->parts[i];
    if (!part.empty()) std::memcpy(content + put.layout.block_offset(i), part.data(), part.size_bytes());
  }
  // Last: a reader that still copies from this slot for an earlier put sees another generation than its own.
  pool_->publish(*slot, put.generation);
  put.stored = std::make_shared<Stored>(pool_, *slot);
  return endpoint_;
}

bool UcxChannel::grant(Link& link, Put& put, const Header&, std::string& where) {
  const uint64_t boot = static_cast<const UcxLink&>(link).id.boot;
  // Equal boot hashes mean one kernel. In another mount or IPC namespace the mapping fails, and the reader asks for
  // frames.
  if (put.stored == nullptr || boot == 0 || boot != core_.instance.boot) return false;
  const Pool::Slot& slot = static_cast<const Stored*>(put.stored.get())->slot;
  where.resize(kWhereBytes);
  store_u64(reinterpret_cast<std::byte*>(where.data()), slot.arena);
  // The address in the writer, because ucp_rkey_ptr() translates by it. It stays between two peers that trust each
  // other.
  store_u64(reinterpret_cast<std::byte*>(where.data()) + 8, reinterpret_cast<uint64_t>(slot.address));
  where += pool_->key(slot.arena);
  return where.size() > kWhereBytes && where.size() <= kWhereBytes + kMaxKeyBytes;
}

Status UcxChannel::fetch(Link& to, const Header&, std::span<const std::byte> where, const Fetch& fetch) {
  if (fetch.layout == nullptr) return ok_status();  // its get is over
  auto& link = static_cast<UcxLink&>(to);
  // A slot has all parts, so a range of the put cannot be granted.
  if (where.size() <= kWhereBytes || fetch.size != fetch.layout->total()) {
    return internal_error("the writer granted a slot with {} bytes of where it is, for {} bytes of {}", where.size(),
                          fetch.size, fetch.layout->total());
  }
  const uint64_t arena = load_u64(&where[0]);
  const std::string_view key(reinterpret_cast<const char*>(&where[kWhereBytes]), where.size() - kWhereBytes);
  const std::size_t bytes = sizeof(SlotHead) + fetch.layout->block_bytes();
  const std::byte* slot = map(link, arena, key, load_u64(&where[8]), bytes);
  if (slot == nullptr) return Status(StatusCode::kUnsupported, "the arena cannot be mapped");
  copies_.push_back({.fetch = fetch, .link = &link, .arena = arena, .slot = slot});
  return ok_status();
}

bool Mapped::covers(const std::byte* at, std::size_t bytes) {
  const auto from = reinterpret_cast<uint64_t>(at), page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (from > UINT64_MAX - page || bytes > UINT64_MAX - page - from) return false;
  const uint64_t first = from / page * page, last = (from + bytes + page - 1) / page * page;
  if (begin_ <= first && last <= end_) return true;
  std::array<unsigned char, 4096> resident{};  // of no interest: an error is what counts
  for (uint64_t next = first; next < last;) {
    const uint64_t step = std::min(last - next, resident.size() * page);
    if (::mincore(reinterpret_cast<void*>(next), step, resident.data()) != 0) return false;
    next += step;
  }
  const bool adjoins = begin_ < end_ && first <= end_ && begin_ <= last;
  begin_ = adjoins ? std::min(begin_, first) : first;
  end_ = adjoins ? std::max(end_, last) : last;
  return true;
}

// Where `bytes` at `address` of an arena of the peer's stand here; null where they cannot be mapped, or where
// kMaxArenaMaps others are all in use.
const std::byte* UcxChannel::map(UcxLink& link, uint64_t arena, std::string_view key, uint64_t address,
                                 std::size_t bytes) {
  // As a pool places its slots.
  if (address % kBufferAlignment != 0) return nullptr;
  auto at = link.arenas.find(arena);
  if (at == link.arenas.end()) {
    if (!evict_arena(link)) return nullptr;
    std::string padded(key);
    // ucp_ep_rkey_unpack() gets no length and walks the lengths inside the key: a damaged one ends in zeros, not
    // outside.
    padded.resize(key.size() + kKeyPadding);
    ucp_rkey_h mapped = nullptr;
    if (api_.ucp_ep_rkey_unpack(link.ep, padded.data(), &mapped) != UCS_OK) return nullptr;
    at = link.arenas.emplace(arena, UcxLink::ArenaMap{.key = mapped}).first;
  }
  void* here = nullptr;
  if (api_.ucp_rkey_ptr(at->second.key, address, &here) != UCS_OK) return nullptr;
  // UCX adds the address to where the arena begins here and does not look at its size, which the key hides. A slot that
  // does not end inside mapped memory is a fault of the writer's, and must not end this process.
  if (!at->second.mapped.covers(static_cast<const std::byte*>(here), bytes)) return nullptr;
  ++at->second.users;
  return static_cast<const std::byte*>(here);
}

// Unmaps the oldest that is not being copied from: ids only grow.
bool UcxChannel::evict_arena(UcxLink& link) {
  if (link.arenas.size() < kMaxArenaMaps) return true;
  const auto idle =
      std::find_if(link.arenas.begin(), link.arenas.end(), [](const auto& entry) { return entry.second.users == 0; });
  if (idle == link.arenas.end()) return false;
  api_.ucp_rkey_destroy(idle->second.key);
  link.arenas.erase(idle);
  return true;
}

void UcxChannel::abandon(RelayOp get) {
  for (Copy& copy : copies_) copy.abandoned = copy.abandoned || copy.fetch.get == get;
}

bool UcxChannel::copy_some() {
  if (copies_.empty()) return false;
  Copy copy = std::move(copies_.front());
  copies_.pop_front();
  // For one step at a time: an end that comes between two steps is delivered at once and does not wait for the copy.
  const bool pinned = copy.fetch.landing->direct;
  if (copy.abandoned || (pinned && !core_.table.pin(copy.fetch.get))) {
    finish_copy(copy, Status(StatusCode::kCancelled, "the get is over"));
    return true;
  }
  if (!copy_step(copy)) {
    // To the end of the queue: copies of several gets take turns, and messages are read between two steps.
    copies_.push_back(copy);
  } else if (slot_generation(copy.slot) != copy.fetch.generation) {
    // The reader's half of a sequence lock; the pool's release() is the writer's. The writer does not wait for readers,
    // so what was copied counts only if the slot still had this put afterwards.
    finish_copy(copy, Status(StatusCode::kUnavailable, "the put ended while its bytes were copied"));
  } else {
    finish_copy(copy, ok_status());
  }
  if (pinned) core_.table.unpin(copy.fetch.get);
  return true;
}

// kCopyBytes further. True: that was all.
bool UcxChannel::copy_step(Copy& copy) {
  const Layout& layout = *copy.fetch.layout;
  const std::byte* content = copy.slot + sizeof(SlotHead);
  std::size_t budget = kCopyBytes;
  while (copy.part < layout.parts() && budget > 0) {
    const std::size_t bytes = std::min(layout.size(copy.part) - copy.offset, budget);
    auto* to = const_cast<std::byte*>(copy.fetch.landing->parts[copy.part].data());
    // Once the put has ended, its writer may overwrite the slot during this copy. Nothing interprets the bytes before
    // the generation was compared.
    if (bytes > 0) std::memcpy(to + copy.offset, content + layout.block_offset(copy.part) + copy.offset, bytes);
    copy.offset += bytes;
    budget -= bytes;
    if (copy.offset < layout.size(copy.part)) break;
    ++copy.part;
    copy.offset = 0;
  }
  return copy.part == layout.parts();
}

void UcxChannel::finish_copy(const Copy& copy, const Status& status) {
  const auto arena = copy.link->arenas.find(copy.arena);
  // An arena with users is never unmapped, and close_failed() takes a link's copies out before its arenas.
  CHECK(arena != copy.link->arenas.end() && arena->second.users > 0);
  --arena->second.users;
  core_.reader.fetched(copy.fetch, status);
}

}  // namespace millrace::ucx
