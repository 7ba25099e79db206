// Layers in time of which each output depends on rows that have come before it: convolutions, transposed convolutions
// and their activation. They are computed as the rows come: a RowHistory keeps those that later outputs still need, so
// that every output has the same bits however its input was cut.
//
// Owner: a vocoder has the layers, each of its sounds the histories. Thread safety: layers are immutable; a history
// belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/omni/conv_weight.h"
#include "models/weight_reader.h"
#include "tensor/tensor.h"

namespace millrace {

// [rows, width] in memory of its own.
struct TimeRows {
  TimeRows() = default;
  TimeRows(int64_t rows, int64_t width);

  kernels::Rows view() { return {bytes.as<float>().data(), rows, width}; }

  Buffer bytes;
  int64_t rows = 0, width = 0;
};

// The last rows of a layer's input.
class RowHistory {
 public:
  RowHistory() = default;
  // Keeps `keep` rows; begins with `zeros` of them (at most `keep`), which are zero.
  RowHistory(int64_t keep, int64_t zeros, int64_t width);

  int64_t count() const { return count_; }
  // The rows that are kept and space for `rows` more, which the caller fills before keep_last().
  TimeRows extended(int64_t rows) const;
  void keep_last(TimeRows& all);

 private:
  int64_t keep_ = 0, count_ = 0, width_ = 0;
  std::vector<float> values_;
};

// x + magnitude * sin(frequency * x)^2 (kernels::Ops::snake), from the logarithms that a file has.
class Snake {
 public:
  Snake() = default;
  Snake(WeightReader& reader, const std::string& name, int64_t width);

  void operator()(kernels::Ops& ops, kernels::ConstRows x, kernels::Rows y) const;

 private:
  std::vector<float> frequency_, magnitude_;
};

// y[t] = the sum over k of weight[k] x[t - (taps - 1 - k) * dilation] + bias; before the beginning x is zero.
class CausalConv {
 public:
  CausalConv() = default;
  // Reads "`name`.weight" [outputs, inputs, taps] and "`name`.bias".
  CausalConv(WeightReader& reader, const std::string& name, int64_t inputs, int64_t outputs, int64_t taps,
             int64_t dilation, const LoadOptions& options);

  const Status& status() const { return weight_.status(); }
  RowHistory history() const;
  // One row for each row of `x`, through `before` where there is one.
  TimeRows run(TimeRows& x, const Snake* before, RowHistory& history, kernels::Ops& ops) const;
  // y += that of a convolution with one tap.
  void add_to(kernels::ConstRows x, kernels::Rows y, kernels::Ops& ops) const;

 private:
  int64_t inputs_ = 0, outputs_ = 0, taps_ = 0, dilation_ = 1;
  ConvWeight weight_;  // [outputs, taps * inputs]
  TensorView bias_;
};

// A transposed convolution with `rate` outputs for each row: of `spread` = 1 or 2 times as many taps. With 2, output
// block t is made of rows t and t + 1, so that the first row makes none (transformers cuts `rate` outputs off at both
// ends, which is the same).
class TransposedConv {
 public:
  TransposedConv() = default;
  // Reads "`name`.weight" [inputs, outputs, spread * rate] and "`name`.bias".
  TransposedConv(WeightReader& reader, const std::string& name, int64_t inputs, int64_t outputs, int64_t rate,
                 int64_t spread, const LoadOptions& options);

  const Status& status() const { return weight_.status(); }
  RowHistory history() const { return RowHistory(spread_ - 1, 0, inputs_); }
  TimeRows run(TimeRows& x, const Snake* before, RowHistory& history, kernels::Ops& ops) const;

 private:
  int64_t inputs_ = 0, outputs_ = 0, rate_ = 1, spread_ = 1;
  ConvWeight weight_;        // [rate * outputs, spread * inputs]
  std::vector<float> bias_;  // rate times
};

}  // namespace millrace
