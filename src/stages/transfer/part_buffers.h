// PartBuffers: memory for the parts of transfers that are on their way. A relay holds a part until its reader has it,
// and fresh memory for the next one costs a page fault every 4 KiB, more than copying the keys and values into it; so
// what a relay has released is used again.
//
// Owner: KvExporter. Thread safety: take() on the owner's thread; the last holder of a buffer may end on any thread,
// and after the PartBuffers.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "stages/transfer/limits.h"
#include "tensor/tensor.h"

namespace millrace::transfer {

class PartBuffers {
 public:
  // At least `bytes`, with any content, which nothing else holds.
  std::shared_ptr<Buffer> take(std::size_t bytes) {
    std::unique_ptr<Buffer> buffer = unused_->pop();
    if (buffer == nullptr || buffer->size_bytes() < bytes) buffer = std::make_unique<Buffer>(bytes);
    return {buffer.release(), [unused = unused_](Buffer* over) { unused->push(std::unique_ptr<Buffer>(over)); }};
  }

 private:
  struct Unused {
    std::mutex mutex;
    std::vector<std::unique_ptr<Buffer>> buffers;  // at most kWindowParts: what one transfer has on its way

    std::unique_ptr<Buffer> pop() {
      const std::lock_guard lock(mutex);
      if (buffers.empty()) return nullptr;
      std::unique_ptr<Buffer> last = std::move(buffers.back());  // its bytes are the likeliest to be in a cache
      buffers.pop_back();
      return last;
    }
    void push(std::unique_ptr<Buffer> buffer) {
      const std::lock_guard lock(mutex);
      if (buffers.size() < static_cast<std::size_t>(kWindowParts)) buffers.push_back(std::move(buffer));
    }
  };

  std::shared_ptr<Unused> unused_ = std::make_shared<Unused>();
};

}  // namespace millrace::transfer
