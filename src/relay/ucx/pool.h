// Pool: memory that UCX shares with other processes of the host, in arenas; each open put has a slot in one of them.
//
// Arenas are made when they are needed, returned to the system when another size needs the memory, and all mapped with
// every page present (a full /dev/shm is an error here and no SIGBUS later). UCX removes their names at once, so
// nothing is left over when the process ends, by whatever way.
//
//   slot:  SlotHead (64 bytes) | the parts, as the session's Layout places them
//
// A reader copies the parts and then looks whether the generation is still the one that it was granted. release() first
// wipes it: so a reader that was taken for dead and is not never takes later bytes for earlier ones.
//
// Owner: the channel and the puts that have slots, together. Thread safety: all functions from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "relay/session/extents.h"
#include "relay/ucx/ucx_api.h"

namespace millrace::ucx {

struct SlotHead {
  uint64_t generation;  // of the put; 0: no put's
  uint64_t zeros[7];
};
static_assert(sizeof(SlotHead) == 64 && std::atomic_ref<uint64_t>::is_always_lock_free);

// The generation as it is now, before anything that was read after it / after anything that was read before it.
uint64_t slot_generation(const std::byte* slot);

// A UCX context. An abandoned worker keeps a leaked reference to it.
struct Context {
  explicit Context(const UcxApi& functions) : api(functions) {}
  ~Context() {
    if (handle != nullptr) api.ucp_cleanup(handle);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  const UcxApi& api;
  ucp_context_h handle = nullptr;
};

class Pool {
 public:
  struct Slot {
    uint64_t arena = 0;
    std::byte* address = nullptr;  // of the SlotHead
  };

  // limit_bytes: of all slots' contents together; `slots`: how many there are at most.
  Pool(std::shared_ptr<Context> context, std::size_t limit_bytes, std::size_t slots);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // A slot for `bytes` of content. nullopt: no memory, or none in one run.
  std::optional<Slot> allocate(std::size_t bytes);
  void publish(const Slot& slot, uint64_t generation);  // after the content was written
  void release(const Slot& slot);
  // With what a peer maps the arena; empty where it cannot be shared.
  std::string key(uint64_t arena) const;

 private:
  struct Arena {
    ucp_mem_h handle = nullptr;
    std::byte* base = nullptr;
    std::string key;
    session::Extents extents;
  };

  std::optional<Slot> take(std::size_t bytes);  // from an arena that is there
  bool add_arena(std::size_t bytes);
  void unmap(std::map<uint64_t, Arena>::iterator at);

  const std::shared_ptr<Context> context_;
  const UcxApi& api_;
  const std::size_t limit_bytes_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Arena> arenas_;
  std::size_t mapped_bytes_ = 0;
  uint64_t next_arena_ = 1;
};

}  // namespace millrace::ucx
