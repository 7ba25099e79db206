#include "relay/shm/channel.h"

#include <sys/eventfd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace millrace::shm {

// u32 slot, u32 zero, u64 key, little-endian as in memory (layout.h asserts it). The slot's generation is the
// descriptor's own.
std::string encode_tail(const Tail& tail) {
  std::string bytes(kTailBytes, '\0');
  std::memcpy(bytes.data(), &tail.slot, sizeof tail.slot);
  std::memcpy(bytes.data() + 8, &tail.key, sizeof tail.key);
  return bytes;
}

Result<Tail> decode_tail(std::string_view bytes) {
  Tail tail;
  uint32_t zeros = 0;
  if (bytes.size() != kTailBytes) {
    return invalid_argument("the descriptor's tail has {} bytes; wanted {}", bytes.size(), kTailBytes);
  }
  std::memcpy(&tail.slot, bytes.data(), sizeof tail.slot);
  std::memcpy(&zeros, bytes.data() + 4, sizeof zeros);
  std::memcpy(&tail.key, bytes.data() + 8, sizeof tail.key);
  if (zeros != 0) return invalid_argument("the descriptor's tail has {} where zeros are wanted", zeros);
  return tail;
}

// 0 is "any reader" in a slot record.
uint64_t destination_hash(const InstanceId& id) {
  return std::max<uint64_t>(XXH3_64bits(id.random.data(), id.random.size()), 1);
}

Result<std::shared_ptr<Channel>> Channel::make(Fd socket, const Welcome& welcome, std::vector<Fd> fds) {
  if (welcome.slots < 1 || welcome.slots > kMaxSlots || welcome.pool_bytes < 1 ||
      welcome.pool_bytes > std::numeric_limits<int64_t>::max() || fds.size() != kWelcomeFds) {
    return invalid_argument("shm relay: a peer offers {} slots, {} bytes and {} descriptors", welcome.slots,
                            welcome.pool_bytes, fds.size());
  }
  std::shared_ptr<Channel> channel(new Channel);
  channel->slots_ = welcome.slots;
  // Checked before it is mapped: a memfd that its owner could cut would end a read of it with SIGBUS.
  const auto map = [](const Fd& memfd, std::size_t size, bool writable, Mapping& mapping) {
    RETURN_IF_ERROR(check_memfd(memfd, size));
    ASSIGN_OR_RETURN(mapping, Mapping::make(memfd, size, writable));
    return ok_status();
  };
  RETURN_IF_ERROR(map(fds[0], welcome.pool_bytes, false, channel->pool_));
  RETURN_IF_ERROR(map(fds[1], state_bytes(welcome.slots), false, channel->state_));
  RETURN_IF_ERROR(map(fds[2], holds_bytes(welcome.slots), true, channel->holds_));
  // The table is the writer's memory and may change: the count that is used from here on is the Welcome's.
  const StateHeader& header = channel->header();
  if (header.magic != kMagic || header.version != kVersion || header.slots != welcome.slots) {
    return invalid_argument("shm relay: a peer's state table is of version {} with {} slots; wanted {} with {}",
                            header.version, header.slots, kVersion, welcome.slots);
  }
  channel->bell_ = std::move(fds[3]);
  channel->socket_ = std::move(socket);
  return channel;
}

// `closed` is set before the puts are ended, so a get that finds its put over because of a close() gets kUnavailable.
Status Channel::over() const {
  if (header().closed.load() != 0) return Status(StatusCode::kUnavailable, "shm relay: the put's writer has closed");
  return invalid_argument("shm relay: the descriptor names a put that is over");
}

Result<Hold> take_hold(std::atomic<uint64_t>& word, uint32_t generation, const std::function<Status()>& offered) {
  uint64_t seen = word.load();
  for (;;) {
    // Behind each load: if `seen` is of a newer put, that one is offered by now and ours is over. Another thread may
    // have got and released it since this one looked, and our word must not replace its release.
    RETURN_IF_ERROR(offered());
    Hold mine = unpack(seen);
    // An earlier put's, which is over. Where it is held, that is by a thread which came too late and is about to give
    // up: the writer offers no slot anew that a thread has taken.
    if (mine.generation != generation) mine = Hold{generation, 0, 0};
    // The fields of a hold word have 16 bits: a carry out of one would change the next.
    if (mine.held == std::numeric_limits<uint16_t>::max() || mine.released == std::numeric_limits<uint16_t>::max()) {
      return error(StatusCode::kResourceExhausted, "shm relay: a put was got {} times", mine.held);
    }
    ++mine.held;
    if (word.compare_exchange_weak(seen, pack(mine))) return mine;
  }
}

Result<std::size_t> Channel::check_record(const Tail& tail, const Descriptor& descriptor,
                                          std::span<const std::size_t> sizes, uint64_t self, Hold mine) const {
  const SlotRecord& slot = record(tail.slot);
  // The key shows that this reader was sent the descriptor: slot, generation and op can be guessed, 64 random bits
  // cannot.
  if (slot.key != tail.key || slot.op != descriptor.op.value || slot.parts != descriptor.parts ||
      slot.bytes != descriptor.bytes || slot.sizes_hash != descriptor.sizes_hash) {
    return invalid_argument("shm relay: the descriptor does not name what stands in slot {}", tail.slot);
  }
  if (slot.destination != 0 && slot.destination != self) {
    return invalid_argument("shm relay: the put is for another reader");
  }
  // One more than the put is for would end it while another reader's get is still to come. `mine` counts this get
  // already.
  if (uint32_t{mine.held} + mine.released > slot.readers) {
    return invalid_argument("shm relay: the put is for {} gets, and this reader made them", slot.readers);
  }
  // Read once: what was checked is what is used, whatever the writer does.
  const uint64_t offset = *const_cast<const volatile uint64_t*>(&slot.offset);
  const uint64_t extent = *const_cast<const volatile uint64_t*>(&slot.extent_bytes);
  const std::size_t wanted = lay_out(sizes, [](std::size_t, std::size_t) {});
  // Whatever the writer has put there, the mapped range is inside of the pool's mapping.
  if (extent > pool_.size_bytes() || offset > pool_.size_bytes() - extent || offset % kPartAlignment != 0 ||
      wanted > extent) {
    return invalid_argument("shm relay: slot {} has {} bytes at {} of {}; wanted {}", tail.slot, extent, offset,
                            pool_.size_bytes(), wanted);
  }
  return offset;
}

Result<Channel::Claim> Channel::claim(const Descriptor& descriptor, std::span<const std::size_t> sizes, uint64_t self) {
  ASSIGN_OR_RETURN(const Tail tail, decode_tail(descriptor.tail));
  if (tail.slot >= slots_ || descriptor.generation == 0 ||
      descriptor.generation > std::numeric_limits<uint32_t>::max()) {
    return invalid_argument("shm relay: the descriptor names slot {} of {}, generation {}", tail.slot, slots_,
                            descriptor.generation);
  }
  Claim claim{tail.slot, static_cast<uint32_t>(descriptor.generation), 0};
  ASSIGN_OR_RETURN(const Hold mine, take_hold(hold(claim.slot), claim.generation,
                                              [&] { return offered(claim) ? ok_status() : over(); }));
  Result<std::size_t> offset = over();
  if (offered(claim)) {
    offset = check_record(tail, descriptor, sizes, self, mine);
    // Where the put was for another reader, our hold did not keep the record: it may be that of a later put by now.
    std::atomic_thread_fence(std::memory_order_acquire);
    if (offset.ok() && !offered(claim)) offset = over();
  }
  if (!offset.ok()) {
    (void)give_up(claim);
    return offset.status();
  }
  claim.offset = *offset;
  return claim;
}

bool Channel::offered(const Claim& claim) const {
  return record(claim.slot).word.load() == slot_word(claim.generation, Offer::kOffered);
}

std::vector<SharedBytes> Channel::parts(const Claim& claim, std::span<const std::size_t> sizes) const {
  std::vector<SharedBytes> parts(sizes.size());
  (void)lay_out(sizes, [&](std::size_t i, std::size_t at) {
    parts[i] = SharedBytes(nullptr, pool_.data() + claim.offset + at, sizes[i]);
  });
  return parts;
}

bool Channel::drop(const Claim& claim, uint16_t counted) {
  std::atomic<uint64_t>& word = hold(claim.slot);
  uint64_t seen = word.load();
  for (;;) {
    Hold mine = unpack(seen);
    if (mine.generation != claim.generation || mine.held == 0) return false;
    --mine.held;
    mine.released = static_cast<uint16_t>(mine.released + counted);
    if (word.compare_exchange_weak(seen, pack(mine))) break;
  }
  // The writer announces that it sleeps before it looks at the holds for the last time, so one of us sees the other.
  if (header().asleep.load() != 0) (void)::eventfd_write(bell_.get(), 1);
  return true;
}

}  // namespace millrace::shm
