// SharedSpan<T>: an immutable array that keeps its memory alive, so that passing it on is passing a reference.
// AppendArray<T>: a growing array, of which any prefix can be passed on as a SharedSpan while it goes on growing.
//
// An AppendArray never writes to an element that lies in a SharedSpan of it: push_back() writes behind them, and set()
// or truncate() followed by push_back() first move to fresh memory. So readers of a SharedSpan in other threads need no
// lock; they must only have received the span in the usual, synchronized way.
//
// Thread safety: SharedSpan: values, holders in any thread. AppendArray: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace {

template <typename T>
class SharedSpan {
 public:
  using value_type = T;

  SharedSpan() = default;
  SharedSpan(std::vector<T> values) : size_(values.size()) {  // NOLINT: a vector is taken over as it is
    if (size_ == 0) return;
    auto owner = std::make_shared<const std::vector<T>>(std::move(values));
    data_ = std::shared_ptr<const T>(owner, owner->data());
  }
  SharedSpan(std::initializer_list<T> values) : SharedSpan(std::vector<T>(values)) {}
  // `data` keeps at least `size` elements alive that are never written again.
  SharedSpan(std::shared_ptr<const T> data, std::size_t size) : data_(std::move(data)), size_(size) {
    CHECK(data_ != nullptr || size_ == 0);
  }

  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  const T& back() const { return data()[size_ - 1]; }
  std::span<const T> span() const { return {data(), size_}; }
  friend bool operator==(const SharedSpan& a, const SharedSpan& b) { return std::ranges::equal(a, b); }

 private:
  std::shared_ptr<const T> data_;
  std::size_t size_ = 0;
};

template <typename T>
class AppendArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AppendArray() = default;
  // Not copied: there would be two writers to one memory.
  AppendArray(AppendArray&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)),
        shared_(std::exchange(other.shared_, 0)) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  std::span<const T> span() const { return {data_.get(), size_}; }

  void push_back(T value) {
    if (size_ == capacity_ || size_ < shared_) move_to(std::max(kLeast, size_ == capacity_ ? 2 * size_ : capacity_));
    data_.get()[size_++] = value;
  }
  // i < size().
  void set(std::size_t i, T value) {
    CHECK(i < size_);
    if (i < shared_) move_to(capacity_);
    data_.get()[i] = value;
  }
  // Keeps the first `size` elements; size <= size().
  void truncate(std::size_t size) {
    CHECK(size <= size_);
    size_ = size;
  }
  // The first `size` elements; size <= size(). Copies nothing.
  SharedSpan<T> share(std::size_t size) {
    CHECK(size <= size_);
    shared_ = std::max(shared_, size);
    return {data_, size};
  }

 private:
  static constexpr std::size_t kLeast = 16;

  void move_to(std::size_t capacity) {
    std::shared_ptr<T[]> fresh(new T[capacity]);
    std::copy_n(data_.get(), size_, fresh.get());
    data_ = std::shared_ptr<T>(fresh, fresh.get());
    capacity_ = capacity;
    shared_ = 0;
  }

  std::shared_ptr<T> data_;
  std::size_t size_ = 0, capacity_ = 0;
  std::size_t shared_ = 0;  // elements of data_ that lie in a SharedSpan, also one that is gone by now
};

}  // namespace millrace
