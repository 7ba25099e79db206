#include "stages/generating/tensor_packer.h"

#include <exception>
#include <utility>

#include "base/trace.h"

namespace millrace {

Status TensorPacker::await_capacity(std::size_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock,
                [&] { return unpacked_bytes_ == 0 || unpacked_bytes_ + bytes <= kUnpackedBytes || !status_.ok(); });
  unpacked_bytes_ += bytes;
  return status_;
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
    Status status = pack(std::move(next));
    lock.lock();
    unpacked_bytes_ -= bytes;
    if (!status.ok()) status_ = std::move(status);
    changed_.notify_all();
  }
}

// Memory that is not there ends the update, not the server.
Status TensorPacker::pack(Received received) {
  try {
    return weights_.add(received.tensor, std::move(received.bytes));
  } catch (const std::exception& problem) {
    return error(StatusCode::kResourceExhausted, "the tensor {} was not packed: {}", received.tensor.name,
                 problem.what());
  }
}

}  // namespace millrace
