#include "relay/ucx/pool.h"

#include <algorithm>
#include <iterator>

#include "base/log.h"

namespace millrace::ucx {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{32} << 20;  // and multiples of it for what is larger
constexpr std::size_t kPageBytes = 4096;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

uint64_t slot_generation(const std::byte* slot) {
  // The fence orders the reader's copy before this load, and the load's own acquire orders it before what follows: the
  // look before and the look after the copy need one each.
  std::atomic_thread_fence(std::memory_order_acquire);
  auto* head = reinterpret_cast<SlotHead*>(const_cast<std::byte*>(slot));
  return std::atomic_ref<uint64_t>(head->generation).load(std::memory_order_acquire);
}

// The heads of the slots and their alignment come on top, so that they do not count against pool_bytes.
Pool::Pool(std::shared_ptr<Context> context, std::size_t limit_bytes, std::size_t slots)
    : context_(std::move(context)),
      api_(context_->api),
      limit_bytes_(round_up(limit_bytes + slots * (sizeof(SlotHead) + kBufferAlignment), kPageBytes)) {}

Pool::~Pool() {
  // Before the context, which the arenas' handles belong to; context_ is the first member and goes last.
  while (!arenas_.empty()) unmap(arenas_.begin());
}

std::optional<Pool::Slot> Pool::take(std::size_t bytes) {
  for (auto& [id, arena] : arenas_) {
    if (const auto offset = arena.extents.take(bytes)) return Slot{id, arena.base + *offset};
  }
  return std::nullopt;
}

std::optional<Pool::Slot> Pool::allocate(std::size_t bytes) {
  const std::size_t slot_bytes = session::aligned(bytes) + sizeof(SlotHead);
  std::lock_guard lock(mutex_);
  if (auto slot = take(slot_bytes)) return slot;
  // Larger arenas in multiples, so that puts of similar sizes find them again; but no larger than the pool may be.
  const std::size_t wanted =
      std::max(round_up(slot_bytes, kPageBytes), std::min(round_up(slot_bytes, kArenaBytes), limit_bytes_));
  // Unused arenas of another size make space; one with a slot in it stays, as readers may have mapped it.
  for (auto at = arenas_.begin(); mapped_bytes_ + wanted > limit_bytes_ && at != arenas_.end();) {
    const auto next = std::next(at);
    if (at->second.extents.unused()) unmap(at);
    at = next;
  }
  // A smaller arena than wanted where the limit leaves less, as long as this slot fits.
  const std::size_t unmapped = limit_bytes_ - std::min(limit_bytes_, mapped_bytes_);
  if (round_up(slot_bytes, kPageBytes) > unmapped || !add_arena(std::min(wanted, unmapped / kPageBytes * kPageBytes))) {
    return std::nullopt;
  }
  return take(slot_bytes);
}

bool Pool::add_arena(std::size_t bytes) {
  Arena arena{.handle = nullptr, .base = nullptr, .key = {}, .extents = {0, bytes}};
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  ucs_status_t status = api_.ucp_mem_map(context_->handle, &params, &arena.handle);
  if (status != UCS_OK) {
    LOG_WARNING("ucx: no shared memory of {} bytes: {}", bytes, api_.ucs_status_string(status));
    return false;
  }
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  void* key = nullptr;
  std::size_t key_bytes = 0;
  // UCX chooses the address, and may round the length up.
  if (api_.ucp_mem_query(arena.handle, &attributes) != UCS_OK || attributes.length < bytes ||
      api_.ucp_rkey_pack(context_->handle, arena.handle, &key, &key_bytes) != UCS_OK) {
    api_.ucp_mem_unmap(context_->handle, arena.handle);
    return false;
  }
  arena.key.assign(static_cast<const char*>(key), key_bytes);
  api_.ucp_rkey_buffer_release(key);
  arena.base = static_cast<std::byte*>(attributes.address);
  mapped_bytes_ += bytes;
  arenas_.emplace(next_arena_++, std::move(arena));
  return true;
}

void Pool::publish(const Slot& slot, uint64_t generation) {
  auto* head = reinterpret_cast<SlotHead*>(slot.address);
  std::atomic_ref<uint64_t>(head->generation).store(generation, std::memory_order_release);
}

void Pool::release(const Slot& slot) {
  auto* head = reinterpret_cast<SlotHead*>(slot.address);
  std::atomic_ref<uint64_t>(head->generation).store(0, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before new content is written
  std::lock_guard lock(mutex_);
  const auto at = arenas_.find(slot.arena);
  CHECK(at != arenas_.end());  // one with a slot in it stays
  at->second.extents.release(static_cast<uint64_t>(slot.address - at->second.base));
}

std::string Pool::key(uint64_t arena) const {
  std::lock_guard lock(mutex_);
  const auto at = arenas_.find(arena);
  return at == arenas_.end() ? std::string() : at->second.key;
}

void Pool::unmap(std::map<uint64_t, Arena>::iterator at) {
  CHECK(at->second.extents.unused() && mapped_bytes_ >= at->second.extents.bytes());
  mapped_bytes_ -= at->second.extents.bytes();
  api_.ucp_mem_unmap(context_->handle, at->second.handle);
  arenas_.erase(at);
}

}  // namespace millrace::ucx
