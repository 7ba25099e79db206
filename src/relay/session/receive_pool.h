// ReceivePool: the memory that gets receive into. A large block that its last holder has released is kept for a while
// and used again: fresh memory costs the kernel about as much time as the bytes themselves (it clears every page).
//
// Kept: at most max_kept_bytes, the oldest go first, none longer than kKeepMs. A block is handed out as it was left,
// and all of it is written before it is read.
//
// Owner: the relay's Reader. Thread safety: all functions from any thread; a block may come back on any thread, also
// when the pool is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace::session {

class ReceivePool {
 public:
  explicit ReceivePool(std::size_t max_kept_bytes);

  struct Block {
    std::shared_ptr<void> owner;  // gives it back
    std::byte* data = nullptr;    // aligned to kBufferAlignment; null: there is no memory
  };
  Block take(std::size_t bytes);
  // Frees what was not used for kKeepMs. Returns when it wants to be asked again; INT64_MAX: nothing is kept.
  int64_t trim(int64_t now_ms);
  std::size_t kept_bytes() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

inline constexpr int64_t kKeepMs = 5'000;
inline constexpr std::size_t kMinKeptBytes = 1u << 20;  // smaller blocks are left to the allocator

}  // namespace millrace::session
