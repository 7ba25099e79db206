// CpuInput: an Input (ops.h) whose rows are made one at a time by the kernels of an ISA, where the loop that packs or
// quantizes them wants them. Thread safety: values; row() of different rows from several threads, each with its own
// space.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/ops.h"

namespace millrace::kernels {

class CpuInput {
 public:
  // `norm`: the weight of input.norm as f32, which like `table` outlives this; null without one.
  CpuInput(const KernelTable& table, const Input& input, const float* norm)
      : table_(&table),
        x_(input.x),
        up_(input.up),
        norm_(norm),
        group_(norm != nullptr ? input.norm.shape.elements() : 0),
        epsilon_(input.epsilon) {}
  CpuInput(const ConstRows& x) : x_(x) {}  // NOLINT: implicit by design

  int64_t count() const { return x_.count; }
  int64_t width() const { return x_.width; }
  bool as_it_is() const { return norm_ == nullptr && up_.data == nullptr; }
  const ConstRows& x() const { return x_; }  // what row() gives, where it is as it is
  CpuInput slice(int64_t begin, int64_t count) const {
    CpuInput some = *this;
    some.x_ = x_.slice(begin, count);
    if (up_.data != nullptr) some.up_ = up_.slice(begin, count);
    return some;
  }

  // Row r: of x itself, or made in `space`, width() floats.
  const float* row(int64_t r, float* space) const {
    if (norm_ != nullptr) {
      table_->rms_norm(x_.row(r), x_.width, norm_, group_, epsilon_, space);
      return space;
    }
    if (up_.data == nullptr) return x_.row(r);
    table_->swiglu(x_.row(r), up_.row(r), x_.width, space);
    return space;
  }

 private:
  const KernelTable* table_ = nullptr;
  ConstRows x_, up_;
  const float* norm_ = nullptr;
  int64_t group_ = 0;
  float epsilon_ = 0;
};

}  // namespace millrace::kernels
