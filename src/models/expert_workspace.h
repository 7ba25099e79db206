// What a layer with experts needs beside the Workspace: the router's logits, which rows go to which expert, and the
// rows on their way. Allocated once for `max_rows` rows; nothing for a model without experts. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/model_config.h"
#include "kernels/ops.h"
#include "tensor/tensor.h"

namespace millrace {

// The rows of one expert, ascending, and what its answer to each counts.
struct ExpertGroup {
  std::span<const int32_t> rows;
  std::span<const float> weights;
};

class ExpertWorkspace {
 public:
  ExpertWorkspace(const ModelConfig& config, int64_t max_rows);

  kernels::Rows logits(int64_t rows) { return take(logits_, rows, experts_); }
  kernels::Rows in(int64_t rows) { return take(in_, rows, hidden_size_); }
  kernels::Rows out(int64_t rows) { return take(out_, rows, hidden_size_); }
  kernels::Rows gate(int64_t rows) { return take(gate_, rows, inner_size_); }
  kernels::Rows up(int64_t rows) { return take(up_, rows, inner_size_); }

  // Of the shared expert, where there is one: its answers are in out().
  kernels::Rows shared_gate(int64_t rows) { return take(shared_gate_, rows, shared_size_); }
  kernels::Rows shared_up(int64_t rows) { return take(shared_up_, rows, shared_size_); }
  // The group of all rows, weighted by the sigmoid of `logits` [rows, 1]. Valid until the next call.
  ExpertGroup all_rows(kernels::ConstRows logits);

  // Routes each row of `logits` to k experts and lists the rows of each (kernels/routing.h).
  void group(kernels::ConstRows logits, int64_t k, bool normalize);
  // Valid until the next group().
  ExpertGroup rows_of(std::size_t expert) const;

 private:
  kernels::Rows take(Buffer& buffer, int64_t rows, int64_t width);

  int64_t max_rows_, experts_, hidden_size_, inner_size_, shared_size_;
  Buffer logits_, in_, out_, gate_, up_, shared_gate_, shared_up_;
  std::vector<int32_t> all_;
  std::vector<float> all_weights_;
  std::vector<int32_t> chosen_;  // [rows][k]
  std::vector<float> weights_;
  // The same, sorted by expert: rows of expert e are [first_[e], first_[e + 1]).
  std::vector<int32_t> first_, next_, rows_;
  std::vector<float> row_weights_;
};

}  // namespace millrace
