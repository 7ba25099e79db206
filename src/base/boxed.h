// Boxed<T>: an optional T on the heap, for members of small structs that are moved often and have the member rarely:
// one pointer where there is none. Copies are deep.
//
// Thread safety: as T.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"

namespace millrace {

template <typename T>
class Boxed {
 public:
  using value_type = T;

  Boxed() = default;
  Boxed(std::nullopt_t) {}
  Boxed(T value) : box_(std::make_unique<T>(std::move(value))) {}
  Boxed(std::optional<T> value) {
    if (value) emplace(std::move(*value));
  }
  Boxed(const Boxed& other) : box_(other.box_ ? std::make_unique<T>(*other.box_) : nullptr) {}
  Boxed(Boxed&&) noexcept = default;
  Boxed& operator=(Boxed&&) noexcept = default;
  Boxed& operator=(const Boxed& other) {
    Boxed copy(other);
    box_.swap(copy.box_);
    return *this;
  }

  template <typename... Args>
  T& emplace(Args&&... args) {
    box_ = std::make_unique<T>(std::forward<Args>(args)...);
    return *box_;
  }
  void reset() { box_.reset(); }

  bool has_value() const { return box_ != nullptr; }
  explicit operator bool() const { return has_value(); }
  T& operator*() { return *box_; }
  const T& operator*() const { return *box_; }
  T* operator->() { return box_.get(); }
  const T* operator->() const { return box_.get(); }
  const T& value() const {
    CHECK(box_);
    return *box_;
  }
  T value_or(T otherwise) const& { return box_ ? *box_ : std::move(otherwise); }
  T value_or(T otherwise) && { return box_ ? std::move(*box_) : std::move(otherwise); }

  friend bool operator==(const Boxed& a, const Boxed& b) {
    return a.has_value() == b.has_value() && (!a.has_value() || *a == *b);
  }

 private:
  std::unique_ptr<T> box_;
};

}  // namespace millrace
