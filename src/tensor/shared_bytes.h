// SharedBytes: bytes that no code changes any more, kept alive by their holders.
//
// The owner behind them may be anything: a Buffer, a mapped file, a slot of another process's shared memory that is
// freed when the last holder releases. Because no code writes, holders in several threads need no lock, and passing
// the bytes on is passing a pointer. The device is part of it, as in TensorView: no code assumes host memory unchecked.
//
// Thread safety: values; holders in any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tensor/tensor.h"

namespace millrace {

class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::shared_ptr<const void> owner, const std::byte* data, std::size_t size_bytes,
              Device device = Device::kHost)
      : owner_(std::move(owner)), data_(data), size_bytes_(size_bytes), device_(device) {}
  // Takes the buffer over: from here on it is read-only.
  explicit SharedBytes(Buffer&& buffer) {
    auto owner = std::make_shared<Buffer>(std::move(buffer));
    data_ = owner->data();
    size_bytes_ = owner->size_bytes();
    owner_ = std::move(owner);
  }
  // Takes the text over.
  static SharedBytes of(std::string text) {
    auto owner = std::make_shared<const std::string>(std::move(text));
    const auto* data = reinterpret_cast<const std::byte*>(owner->data());
    const std::size_t size = owner->size();
    return {std::move(owner), data, size};
  }

  const std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  Device device() const { return device_; }
  bool empty() const { return size_bytes_ == 0; }
  std::span<const std::byte> span() const { return {data_, size_bytes_}; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  // [offset, offset + size) of these bytes, with the same owner. The range must lie inside.
  SharedBytes slice(std::size_t offset, std::size_t size) const {
    CHECK(offset <= size_bytes_ && size <= size_bytes_ - offset);
    return {owner_, data_ + offset, size, device_};
  }

 private:
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  Device device_ = Device::kHost;
};

// An immutable tensor that owns its bytes with its other holders. Dense, row-major.
struct SharedTensor {
  DType dtype = DType::kF32;
  Shape shape;
  SharedBytes bytes;  // exactly shape.elements() * dtype_size(dtype)

  TensorView view() const { return {bytes.data(), dtype, shape, bytes.device()}; }
};

}  // namespace millrace
