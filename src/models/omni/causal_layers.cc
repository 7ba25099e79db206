#include "models/omni/causal_layers.h"

#include <algorithm>
#include <cmath>

#include "kernels/half.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Rows;

constexpr int64_t kTapRows = 256;  // of an input whose taps lie apart, that are copied together at one go

// The history, then x, through `before` where there is one.
TimeRows joined(TimeRows& x, const Snake* before, const RowHistory& history, kernels::Ops& ops) {
  TimeRows all = history.extended(x.rows);
  const Rows added = all.view().slice(history.count(), x.rows);
  if (before != nullptr) {
    (*before)(ops, x.view(), added);
  } else {
    std::copy_n(x.view().data, x.rows * x.width, added.data);
  }
  return all;
}

TensorView f32_view(const std::vector<float>& values) {
  return {.data = values.data(),
          .dtype = DType::kF32,
          .shape = {static_cast<int64_t>(values.size())},
          .device = Device::kHost};
}

}  // namespace

TimeRows::TimeRows(int64_t rows, int64_t width) : bytes(float_buffer(rows, width)), rows(rows), width(width) {}

RowHistory::RowHistory(int64_t keep, int64_t zeros, int64_t width)
    : keep_(keep), count_(zeros), width_(width), values_(static_cast<std::size_t>(keep * width), 0.0f) {
  CHECK(zeros <= keep);
}

TimeRows RowHistory::extended(int64_t rows) const {
  TimeRows out(count_ + rows, width_);
  std::copy_n(values_.data(), count_ * width_, out.view().data);
  return out;
}

void RowHistory::keep_last(TimeRows& all) {
  CHECK(all.width == width_);
  count_ = std::min(keep_, all.rows);
  std::copy_n(all.view().row(all.rows - count_), count_ * width_, values_.data());
}

Snake::Snake(WeightReader& reader, const std::string& name, int64_t width) {
  constexpr float kNotZero = 1e-9f;
  const TensorView alpha = reader.tensor(name + ".alpha", {width}), beta = reader.tensor(name + ".beta", {width});
  if (alpha.data == nullptr || beta.data == nullptr) return;
  for (const float value : kernels::widened_values(alpha)) frequency_.push_back(std::exp(value));
  for (const float value : kernels::widened_values(beta)) magnitude_.push_back(1.0f / (std::exp(value) + kNotZero));
}

void Snake::operator()(kernels::Ops& ops, ConstRows x, Rows y) const {
  ops.snake(x, f32_view(frequency_), f32_view(magnitude_), y);
}

CausalConv::CausalConv(WeightReader& reader, const std::string& name, int64_t inputs, int64_t outputs, int64_t taps,
                       int64_t dilation, const LoadOptions& options)
    : inputs_(inputs), outputs_(outputs), taps_(taps), dilation_(dilation) {
  const auto source = [&](int64_t row, int64_t column) {
    return (row * inputs + column % inputs) * taps + column / inputs;
  };
  weight_ = ConvWeight(reader, name + ".weight", {outputs, inputs, taps}, outputs, taps * inputs, source, options);
  bias_ = reader.tensor(name + ".bias", {outputs});
}

RowHistory CausalConv::history() const {
  const int64_t rows = (taps_ - 1) * dilation_;
  return RowHistory(rows, rows, inputs_);
}

TimeRows CausalConv::run(TimeRows& x, const Snake* before, RowHistory& history, kernels::Ops& ops) const {
  TimeRows all = joined(x, before, history, ops);
  TimeRows out(x.rows, outputs_);
  const kernels::LinearOptions options{.bias = bias_};
  if (dilation_ == 1 && x.rows > 0) {
    ops.linear(ConstRows(all.view().data, x.rows, taps_ * inputs_, inputs_), weight_.weight(), out.view(), options);
  } else if (x.rows > 0) {
    TimeRows taps(std::min(kTapRows, x.rows), taps_ * inputs_);
    for (int64_t first = 0; first < x.rows; first += kTapRows) {
      const int64_t n = std::min(kTapRows, x.rows - first);
      const Rows rows = taps.view().slice(0, n);
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t k = 0; k < taps_; ++k) {
          std::copy_n(all.view().row(first + r + k * dilation_), inputs_, rows.row(r) + k * inputs_);
        }
      }
      ops.linear(rows, weight_.weight(), out.view().slice(first, n), options);
    }
  }
  history.keep_last(all);
  return out;
}

void CausalConv::add_to(ConstRows x, Rows y, kernels::Ops& ops) const {
  CHECK(taps_ == 1);
  if (x.count > 0) ops.linear(x, weight_.weight(), y, {.bias = bias_, .accumulate = true});
}

TransposedConv::TransposedConv(WeightReader& reader, const std::string& name, int64_t inputs, int64_t outputs,
                               int64_t rate, int64_t spread, const LoadOptions& options)
    : inputs_(inputs), outputs_(outputs), rate_(rate), spread_(spread) {
  CHECK(spread == 1 || spread == 2);
  // Output `phase` of a block has tap `phase` of its last row and tap `rate + phase` of the row before.
  const auto source = [&](int64_t row, int64_t column) {
    const int64_t phase = row / outputs, output = row % outputs, input = column % inputs;
    const int64_t back = spread - 1 - column / inputs;
    return (input * outputs + output) * spread * rate + back * rate + phase;
  };
  weight_ = ConvWeight(reader, name + ".weight", {inputs, outputs, spread * rate}, rate * outputs, spread * inputs,
                       source, options);
  const TensorView bias = reader.tensor(name + ".bias", {outputs});
  if (bias.data == nullptr) return;
  const std::vector<float> once = kernels::widened_values(bias);
  for (int64_t i = 0; i < rate; ++i) bias_.insert(bias_.end(), once.begin(), once.end());
}

TimeRows TransposedConv::run(TimeRows& x, const Snake* before, RowHistory& history, kernels::Ops& ops) const {
  TimeRows all = joined(x, before, history, ops);
  const int64_t blocks = std::max<int64_t>(all.rows - (spread_ - 1), 0);
  TimeRows out(blocks * rate_, outputs_);
  if (blocks > 0) {
    ops.linear(ConstRows(all.view().data, blocks, spread_ * inputs_, inputs_), weight_.weight(),
               Rows(out.view().data, blocks, rate_ * outputs_), {.bias = f32_view(bias_)});
  }
  history.keep_last(all);
  return out;
}

}  // namespace millrace
