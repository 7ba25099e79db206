// A view of a dense row-major tensor, and the buffer that may own its bytes.
//
// A TensorView never owns: its maker keeps the bytes alive (a mapped weight file, a Buffer). Views are read-only
// by default; kernels that write take plain spans or MutableTensorView. The device is part of the view, so that no code
// may assume host memory without checking.
//
// Thread safety: values; concurrent reads of the same bytes are fine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace millrace {

enum class Device : uint8_t { kHost = 0, kCuda = 1 };

inline constexpr int kMaxDims = 8;
inline constexpr std::size_t kBufferAlignment = 64;  // one cache line, and the widest vector load

// Up to kMaxDims extents. An empty shape is a scalar (one element).
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    CHECK(dims.size() <= kMaxDims);
    for (int64_t d : dims) dims_[static_cast<std::size_t>(rank_++)] = d;
  }
  void push_back(int64_t dim) {
    CHECK(rank_ < kMaxDims);
    dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  // Product of the extents. The maker of the shape has checked that it does not overflow.
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
    return n;
  }
  // "[2048, 128]"
  std::string to_string() const {
    std::string text = "[";
    for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(dims_[static_cast<std::size_t>(i)]);
    return text + "]";
  }
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxDims> dims_{};
  int rank_ = 0;
};

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;
  Device device = Device::kHost;

  std::size_t size_bytes() const { return storage_bytes(dtype, shape.elements()); }
  // The elements as T. The caller knows the dtype; the size of T must fit it.
  template <typename T>
  std::span<const T> as() const {
    CHECK(sizeof(T) == dtype_size(dtype) && device == Device::kHost);
    return {static_cast<const T*>(data), static_cast<std::size_t>(shape.elements())};
  }
};

// Owned host bytes, aligned to kBufferAlignment. Fresh buffers are NOT zeroed. Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size_bytes) : size_bytes_(size_bytes) {
    const std::size_t rounded = (size_bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    bytes_.reset(static_cast<std::byte*>(std::aligned_alloc(kBufferAlignment, rounded ? rounded : kBufferAlignment)));
    CHECK(bytes_ != nullptr);
  }
  std::size_t size_bytes() const { return size_bytes_; }
  std::byte* data() { return bytes_.get(); }
  const std::byte* data() const { return bytes_.get(); }
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(bytes_.get()), size_bytes_ / sizeof(T)};
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_bytes_ = 0;
};

}  // namespace millrace
