#include "relay/shm/writer.h"

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "relay/shm/channel.h"

namespace millrace::shm {

Writer::Writer(const RelayOptions& options, OpTable& table)
    : table_(table), slot_count_(static_cast<uint32_t>(options.credits)), slots_(slot_count_) {
  // A stack: the slot that was freed last is used next. Slot 0 is on top.
  for (uint32_t i = slot_count_; i > 0; --i) free_.push_back(i - 1);
}

Result<std::unique_ptr<Writer>> Writer::make(const RelayOptions& options, const InstanceId& self, OpTable& table) {
  if (options.credits < 1 || options.credits > static_cast<int>(kMaxSlots)) {
    return invalid_argument("shm relay: credits is {}; wanted 1..{}", options.credits, kMaxSlots);
  }
  std::unique_ptr<Writer> writer(new Writer(options, table));
  writer->self_ = self;
  const InstanceId seed = make_instance_id();
  // A random number of its own, since the instance's is public: keys must not follow from a descriptor.
  std::memcpy(&writer->key_seed_, seed.random.data(), 8);
  std::memcpy(&writer->key_stream_, seed.random.data() + 8, 8);
  const std::size_t bytes = state_bytes(writer->slot_count_);
  ASSIGN_OR_RETURN(Fd state, make_memfd("millrace-state", bytes));
  // Without reserved pages a full memory would be a SIGBUS at the first write, in the writer or in a reader.
  RETURN_IF_ERROR(reserve_pages(state, 0, bytes));
  // Opened for reading alone: this descriptor goes to the readers, and the kernel refuses them a writable mapping of
  // it.
  ASSIGN_OR_RETURN(writer->state_fd_, read_only(state));
  ASSIGN_OR_RETURN(writer->state_, Mapping::make(state, bytes, true));
  ASSIGN_OR_RETURN(writer->pool_, Pool::make(options.pool_bytes));
  StateHeader& header = writer->header();
  header.magic = kMagic;
  header.version = kVersion;
  header.slots = writer->slot_count_;
  return writer;
}

uint64_t Writer::next_key() {
  const PhiloxBlock block = philox(key_seed_, ++keys_, key_stream_);
  return uint64_t{block[0]} << 32 | block[1];
}

void Writer::copy_in(const PutRequest& request, std::span<const std::size_t> sizes, const Extent& extent) const {
  std::byte* base = pool_->at(extent);
  (void)lay_out(sizes, [&](std::size_t i, std::size_t at) {
    if (sizes[i] != 0) std::memcpy(base + at, request.parts[i].data(), sizes[i]);
  });
}

uint32_t Writer::fill_slot(RelayOp op, const PutRequest& request, const Extent& extent, uint64_t destination) {
  CHECK(!free_.empty());
  const uint32_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  // Never 0: a hold table begins as zeros, and its words must not name a put.
  const uint32_t generation = slot.generation + 1 == 0 ? 1 : slot.generation + 1;
  slot = Slot{};
  slot.state = Slot::State::kOpen;
  slot.generation = generation;
  slot.op = op;
  slot.extent = extent;
  slot.readers = static_cast<uint32_t>(request.readers);
  slot.destination = destination;
  slot_of_.emplace(op, index);
  return index;
}

void Writer::publish(uint32_t index, const Descriptor& descriptor, uint64_t key) {
  const Slot& slot = slots_[index];
  SlotRecord& record = this->record(index);
  // Plain writes: a reader reads a record only while it holds the offered generation, and this one is not offered
  // before the word below is stored. That store is sequentially consistent, as the hazard pointer needs.
  record.key = key;
  record.op = slot.op.value;
  record.destination = slot.destination;
  record.offset = slot.extent.offset;
  record.extent_bytes = slot.extent.bytes;
  record.bytes = descriptor.bytes;
  record.sizes_hash = descriptor.sizes_hash;
  record.parts = descriptor.parts;
  record.readers = slot.readers;
  record.word.store(slot_word(slot.generation, Offer::kOffered));
}

Result<Descriptor> Writer::offer(RelayOp op, const PutRequest& request, uint64_t destination) {
  Descriptor descriptor;
  const std::vector<std::size_t> sizes = part_sizes(request.parts);
  describe_sizes(sizes, descriptor);
  {
    std::lock_guard lock(mutex_);
    // The op may have been opened before close(), which does not wait for puts. From here to --copying_ close() keeps
    // the pool.
    if (pool_ == nullptr) return Status(StatusCode::kUnavailable, "the relay is closed");
    ++copying_;
  }
  // Copied without the lock, so that large puts do not wait for each other nor hold up sweep(). The slot is taken after
  // the copy: a reader cannot see it before, and a put without memory uses none.
  Result<Extent> extent = pool_->take(lay_out(sizes, [](std::size_t, std::size_t) {}));
  if (extent.ok()) copy_in(request, sizes, *extent);
  std::lock_guard lock(mutex_);
  --copying_;
  if (!extent.ok()) return extent.status();
  if (free_.empty()) {  // the table gives no more credits than there are slots
    pool_->release(*extent);
    return internal_error("shm relay: no slot for a put that has a credit");
  }
  const uint32_t index = fill_slot(op, request, *extent, destination);
  const Tail tail{index, next_key()};
  publish(index, descriptor, tail.key);
  descriptor.backend = "shm";
  descriptor.instance = self_;
  descriptor.op = op;
  descriptor.generation = slots_[index].generation;
  descriptor.tail = encode_tail(tail);
  return descriptor;
}

Writer::Tally Writer::tally(uint32_t index) {
  Slot& slot = slots_[index];
  Tally tally{0, slot.released + slot.died};
  for (const auto& [id, reader] : readers_) {
    if (!is_for(slot, reader)) continue;
    const Hold hold = hold_of(reader, index);
    if (hold.generation != slot.generation) continue;  // it speaks of an earlier put, which is over
    tally.held += hold.held;
    // A reader's table is memory that the reader writes: what it claims is bounded by what the put is for.
    tally.released += std::min<uint32_t>(hold.released, slot.readers);
    if (hold.released > slot.readers && !std::exchange(slot.odd, true)) table_.count_bad_frame();
  }
  return tally;
}

void Writer::free_slot(uint32_t index) {
  Slot& slot = slots_[index];
  CHECK(slot.state != Slot::State::kFree);
  pool_->release(slot.extent);
  slot_of_.erase(slot.op);
  slot.state = Slot::State::kFree;
  free_.push_back(index);
}

bool Writer::ended(RelayOp op) {
  std::lock_guard lock(mutex_);
  const auto at = slot_of_.find(op);
  if (at == slot_of_.end()) return true;
  const uint32_t index = at->second;
  Slot& slot = slots_[index];
  CHECK(slot.state == Slot::State::kOpen);  // each put ends once
  // Not yet free: sweep() frees it when the last hold is gone, and until then no put may use its bytes.
  slot.state = Slot::State::kDraining;
  // First the word, then the holds: the writer's half of the hazard pointer, see layout.h.
  record(index).word.store(slot_word(slot.generation, Offer::kRevoked));
  if (tally(index).held != 0) return false;
  free_slot(index);
  return true;
}

void Writer::sweep() {
  // Collected under the lock and reported without it: the table calls ended(), which takes the lock.
  std::vector<std::pair<RelayOp, bool>> over;  // and whether all readers lived
  std::vector<RelayOp> back;
  {
    std::lock_guard lock(mutex_);
    for (auto at = slot_of_.begin(); at != slot_of_.end();) {
      // Advanced first, as free_slot() erases the entry.
      const auto [op, index] = *at++;
      const Slot& slot = slots_[index];
      const Tally now = tally(index);
      if (slot.state == Slot::State::kOpen && now.released >= slot.readers) {
        over.emplace_back(op, slot.died == 0);
      } else if (slot.state == Slot::State::kDraining && now.held == 0) {
        free_slot(index);
        back.push_back(op);
      }
    }
  }
  // Credits first: an end's `done` may call put().
  for (const RelayOp op : back) table_.release(op);
  for (const auto& [op, lived] : over) {
    (void)table_.end_put(op, lived ? ok_status() : Status(StatusCode::kUnavailable, "shm relay: a reader died"));
  }
}

Result<Writer::Share> Writer::add_reader(uint64_t id, uint64_t reader) {
  const std::size_t bytes = holds_bytes(slot_count_);
  Share share;
  ASSIGN_OR_RETURN(share.holds, make_memfd("millrace-holds", bytes));
  RETURN_IF_ERROR(reserve_pages(share.holds, 0, bytes));
  // The reader alone writes it.
  ASSIGN_OR_RETURN(Mapping holds, Mapping::make(share.holds, bytes, false));
  CHECK(pool_ != nullptr);
  share.welcome.slots = slot_count_;
  share.welcome.pool_bytes = pool_->space_bytes();
  // Numbers only; the descriptors stay the pool's and the writer's, and the message duplicates them.
  share.pool = pool_->for_readers().get();
  share.state = state_fd_.get();
  std::lock_guard lock(mutex_);
  readers_.insert_or_assign(id, Reader{reader, std::move(holds)});
  return share;
}

void Writer::remove_reader(uint64_t id) {
  uint64_t self = 0;
  {
    std::lock_guard lock(mutex_);
    const auto at = readers_.find(id);
    if (at == readers_.end()) return;
    for (const auto& [op, index] : slot_of_) {
      Slot& slot = slots_[index];
      if (!is_for(slot, at->second)) continue;
      const Hold hold = hold_of(at->second, index);
      if (hold.generation != slot.generation) continue;
      // What its table has must survive it: a get that was released counts as such, one that was held counts as died.
      // Both become the slot's own numbers before the table goes.
      slot.released += std::min<uint32_t>(hold.released, slot.readers);
      slot.died += std::min<uint32_t>(hold.held, slot.readers);
    }
    self = at->second.self;
    readers_.erase(at);
  }
  // First the puts that are over by this reader's end, then those that were for it alone and not taken yet.
  sweep();
  // The same instance may have connected a second time.
  if (!has_reader(self)) destination_gone(self);
}

bool Writer::has_reader(uint64_t reader) const {
  std::lock_guard lock(mutex_);
  return std::any_of(readers_.begin(), readers_.end(), [&](const auto& entry) { return entry.second.self == reader; });
}

void Writer::destination_gone(uint64_t reader) {
  std::vector<RelayOp> lost;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [op, index] : slot_of_) {
      const Slot& slot = slots_[index];
      // A put with a hold stays: received bytes may outlive the reader's relay, and their release ends it as usual.
      if (slot.state == Slot::State::kOpen && slot.destination == reader && tally(index).held == 0) lost.push_back(op);
    }
  }
  for (const RelayOp op : lost) {
    (void)table_.end_put(op, Status(StatusCode::kUnavailable, "shm relay: the put's reader is gone"));
  }
}

void Writer::close() {
  std::vector<RelayOp> given_up;
  {
    std::lock_guard lock(mutex_);
    // Also what draining readers still hold: their mapping keeps the memory, and nothing here uses it again.
    for (const auto& [op, index] : slot_of_) given_up.push_back(op);
    slot_of_.clear();
    readers_.clear();
    if (copying_ == 0) pool_.reset();  // else a put is slower than the close: it goes with this object
  }
  for (const RelayOp op : given_up) table_.release(op);
}

}  // namespace millrace::shm
