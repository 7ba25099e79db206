#include "stages/generating/tensor_packer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/trace.h"

namespace millrace {

Result<Buffer> TensorPacker::take_buffer(std::size_t size_bytes) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(
        lock, [&] { return unpacked_bytes_ == 0 || unpacked_bytes_ + size_bytes <= kUnpackedBytes || !status_.ok(); });
    RETURN_IF_ERROR(status_);
    unpacked_bytes_ += size_bytes;
    if (auto buffer = reuse(size_bytes)) return *std::move(buffer);
  }
  return Buffer(size_bytes);
}

std::optional<Buffer> TensorPacker::reuse(std::size_t size_bytes) {
  const auto found =
      std::find_if(idle_.begin(), idle_.end(), [&](const Buffer& buffer) { return buffer.size_bytes() == size_bytes; });
  if (found != idle_.end()) {
    Buffer buffer = std::move(*found);
    idle_.erase(found);
    idle_bytes_ -= size_bytes;
    return buffer;
  }
  while (!idle_.empty() && unpacked_bytes_ + idle_bytes_ > kUnpackedBytes) {
    idle_bytes_ -= idle_.front().size_bytes();
    idle_.pop_front();
  }
  return std::nullopt;
}

void TensorPacker::add(const TensorSpec& tensor, Buffer bytes) {
  {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    received_.push_back({tensor, std::move(bytes)});
  }
  changed_.notify_all();
}

Status TensorPacker::finish() {
  {
    std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  return status_;
}

void TensorPacker::run() {
  trace::name_thread("weights");
  std::unique_lock lock(mutex_);
  while (status_.ok()) {
    changed_.wait(lock, [&] { return finishing_ || !received_.empty(); });
    if (received_.empty()) return;
    Received next = std::move(received_.front());
    received_.pop_front();
    const std::size_t bytes = next.bytes.size_bytes();
    lock.unlock();
    Status status = pack(next);
    lock.lock();
    unpacked_bytes_ -= bytes;
    if (next.bytes.data() != nullptr) {
      idle_bytes_ += bytes;
      idle_.push_back(std::move(next.bytes));
    }
    if (!status.ok()) status_ = std::move(status);
    changed_.notify_all();
  }
}

// Memory that is not there ends the update, not the server.
Status TensorPacker::pack(Received& received) {
  try {
    return weights_.add(received.tensor, received.bytes);
  } catch (const std::exception& problem) {
    return error(StatusCode::kResourceExhausted, "the tensor {} was not packed: {}", received.tensor.name,
                 problem.what());
  }
}

}  // namespace millrace
