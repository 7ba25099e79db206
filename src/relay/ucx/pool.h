// Pool: memory that UCX shares with other processes of the host, in arenas; each open put has a slot in one of them.
//
// Arenas are made when they are needed, given back to the system when another size needs the room, and all mapped with
// every page there (a full /dev/shm is an error here and no SIGBUS later). UCX removes their names at once, so nothing
// is left over when the process ends, by whatever way.
//
//   slot:  SlotHead (64 bytes) | the parts, as lay_out() places them
//
// A reader copies the parts and then looks whether the generation is still the one that it was told. release() first
// wipes it: so a reader that was taken for dead and is not never takes later bytes for earlier ones.
//
// Thread safety: all functions from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "relay/ucx/ucx_api.h"

namespace millrace::ucx {

struct SlotHead {
  uint64_t generation;  // of the put; 0: no put's
  uint64_t zeros[7];
};
static_assert(sizeof(SlotHead) == 64 && std::atomic_ref<uint64_t>::is_always_lock_free);

// The generation as it is now, before anything that was read after it / after anything that was read before it.
uint64_t slot_generation(const std::byte* slot);

class Pool {
 public:
  struct Slot {
    uint64_t arena = 0;
    std::byte* address = nullptr;  // of the SlotHead
    std::size_t bytes = 0;         // with it
  };

  // limit_bytes: of all slots' contents together; `slots`: how many there are at most.
  Pool(const UcxApi& api, ucp_context_h context, std::size_t limit_bytes, std::size_t slots);
  ~Pool() { clear(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Room for `bytes` of content. nullopt: no memory, or none in one piece.
  std::optional<Slot> allocate(std::size_t bytes);
  void publish(const Slot& slot, uint64_t generation);  // after the content was written
  void release(const Slot& slot);
  // With what a peer maps the arena; empty where it cannot be shared.
  std::string key(uint64_t arena) const;
  // Unmaps all arenas; nothing may be allocated any more.
  void clear();

 private:
  struct Arena {
    ucp_mem_h handle = nullptr;
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    std::string key;
    std::map<std::size_t, std::size_t> free;  // offset to bytes, no two adjacent
  };

  std::optional<Slot> take(std::size_t bytes);  // from an arena that is there
  bool add_arena(std::size_t bytes);
  void unmap(std::map<uint64_t, Arena>::iterator at);

  const UcxApi& api_;
  ucp_context_h const context_;
  const std::size_t limit_bytes_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Arena> arenas_;
  std::size_t mapped_bytes_ = 0;
  uint64_t next_arena_ = 1;
};

}  // namespace millrace::ucx
