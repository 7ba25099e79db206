#include "relay/session/receive_pool.h"

#include <sys/mman.h>

#include <cstdlib>
#include <deque>
#include <mutex>

#include "base/clock.h"
#include "relay/op_table.h"
#include "tensor/tensor.h"

namespace millrace::session {
namespace {

constexpr std::size_t kHugePage = 2u << 20;
constexpr std::size_t kWasteShare = 8;  // a kept block is used where at most an eighth of it would be left over

struct Raw {
  std::byte* data = nullptr;
  std::size_t size = 0;
  int64_t since_ms = 0;
};

std::byte* allocate(std::size_t bytes) {
  void* data = nullptr;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kBufferAlignment;
  if (posix_memalign(&data, alignment, bytes) != 0) return nullptr;
  // One fault for each 2 MiB instead of each 4 KiB, where the kernel has such pages; else nothing happens.
  if (bytes >= kHugePage) (void)madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace

struct ReceivePool::Shelf {
  const std::size_t max_bytes;
  std::mutex mutex;
  std::deque<Raw> kept;  // the oldest first
  std::size_t bytes = 0;

  explicit Shelf(std::size_t max) : max_bytes(max) {}
  ~Shelf() {
    for (const Raw& raw : kept) std::free(raw.data);
  }
  void pop_front() {
    bytes -= kept.front().size;
    std::free(kept.front().data);
    kept.pop_front();
  }
  Raw find(std::size_t wanted) {
    const std::lock_guard lock(mutex);
    for (auto it = kept.begin(); it != kept.end(); ++it) {
      // The first that fits, and so the oldest. A block that is much too large stays for a get that needs it.
      if (it->size < wanted || it->size - wanted > it->size / kWasteShare) continue;
      const Raw raw = *it;
      bytes -= raw.size;
      kept.erase(it);
      return raw;
    }
    return {};
  }
  void put_back(Raw raw) {
    const std::lock_guard lock(mutex);
    // So the loop below ends: without other blocks this one fits.
    if (raw.size < kMinKeptBytes || raw.size > max_bytes) {
      std::free(raw.data);
      return;
    }
    while (bytes + raw.size > max_bytes) pop_front();
    bytes += raw.size;
    raw.since_ms = monotonic_ms();
    kept.push_back(raw);
  }
};

ReceivePool::ReceivePool(std::size_t max_kept_bytes) : shelf_(std::make_shared<Shelf>(max_kept_bytes)) {}

ReceivePool::Block ReceivePool::take(std::size_t bytes) {
  bytes = std::max<std::size_t>((bytes + kBufferAlignment - 1) / kBufferAlignment, 1) * kBufferAlignment;
  Raw raw = shelf_->find(bytes);
  if (raw.data == nullptr) raw = {allocate(bytes), bytes, 0};
  if (raw.data == nullptr) return {};
  // Weak: parts outlive the relay, and with it the pool, and their holders keep the block. The deleter runs on the
  // thread that drops the last part.
  auto owner = std::shared_ptr<void>(raw.data, [shelf = std::weak_ptr<Shelf>(shelf_), raw](void*) {
    if (const std::shared_ptr<Shelf> home = shelf.lock()) {
      home->put_back(raw);
    } else {
      std::free(raw.data);
    }
  });
  return {std::move(owner), raw.data};
}

int64_t ReceivePool::trim(int64_t now_ms) {
  const std::lock_guard lock(shelf_->mutex);
  // In the sequence in which they came back, so the first one that is young enough ends the walk.
  while (!shelf_->kept.empty() && shelf_->kept.front().since_ms + kKeepMs <= now_ms) shelf_->pop_front();
  return shelf_->kept.empty() ? INT64_MAX : shelf_->kept.front().since_ms + kKeepMs;
}

std::size_t ReceivePool::kept_bytes() const {
  const std::lock_guard lock(shelf_->mutex);
  return shelf_->bytes;
}

}  // namespace millrace::session
