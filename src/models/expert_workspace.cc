#include "models/expert_workspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/routing.h"
#include "tensor/float_buffer.h"

namespace millrace {

ExpertWorkspace::ExpertWorkspace(const ModelConfig& config, int64_t max_rows)
    : max_rows_(max_rows),
      experts_(config.num_experts),
      hidden_size_(experts_ > 0 ? config.hidden_size : 0),
      inner_size_(experts_ > 0 ? config.moe_intermediate_size : 0),
      shared_size_(config.shared_expert_size),
      logits_(float_buffer(max_rows, experts_)),
      in_(float_buffer(max_rows, hidden_size_)),
      out_(float_buffer(max_rows, hidden_size_)),
      gate_(float_buffer(max_rows, inner_size_)),
      up_(float_buffer(max_rows, inner_size_)),
      shared_gate_(float_buffer(max_rows, shared_size_)),
      shared_up_(float_buffer(max_rows, shared_size_)) {
  if (shared_size_ > 0) {
    all_.resize(static_cast<std::size_t>(max_rows));
    std::iota(all_.begin(), all_.end(), 0);
    all_weights_.resize(all_.size());
  }
  const auto routed = static_cast<std::size_t>(max_rows * (experts_ > 0 ? config.experts_per_token : 0));
  chosen_.resize(routed);
  weights_.resize(routed);
  rows_.resize(routed);
  row_weights_.resize(routed);
  first_.resize(static_cast<std::size_t>(experts_) + 1);
  next_.resize(static_cast<std::size_t>(experts_) + 1);
}

kernels::Rows ExpertWorkspace::take(Buffer& buffer, int64_t rows, int64_t width) {
  CHECK(rows <= max_rows_);
  return {buffer.as<float>().data(), rows, width};
}

ExpertGroup ExpertWorkspace::all_rows(kernels::ConstRows logits) {
  const auto count = static_cast<std::size_t>(logits.count);
  CHECK(count <= all_.size() && logits.width == 1);
  for (int64_t r = 0; r < logits.count; ++r) {
    all_weights_[static_cast<std::size_t>(r)] = 1.0f / (1.0f + std::exp(-logits.row(r)[0]));
  }
  return {.rows = std::span(all_).first(count), .weights = std::span(all_weights_).first(count)};
}

void ExpertWorkspace::group(kernels::ConstRows logits, int64_t k, bool normalize) {
  const auto count = static_cast<std::size_t>(logits.count * k);
  kernels::route(logits, k, normalize, std::span(chosen_).first(count), std::span(weights_).first(count));
  // A counting sort: stable, so that each expert's rows stay in order.
  std::fill(first_.begin(), first_.end(), 0);
  for (std::size_t i = 0; i < count; ++i) ++first_[static_cast<std::size_t>(chosen_[i]) + 1];
  for (std::size_t e = 1; e < first_.size(); ++e) first_[e] += first_[e - 1];
  next_ = first_;
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(next_[static_cast<std::size_t>(chosen_[i])]++);
    rows_[at] = static_cast<int32_t>(i / static_cast<std::size_t>(k));
    row_weights_[at] = weights_[i];
  }
}

ExpertGroup ExpertWorkspace::rows_of(std::size_t expert) const {
  const auto begin = static_cast<std::size_t>(first_[expert]), end = static_cast<std::size_t>(first_[expert + 1]);
  return {.rows = std::span(rows_).subspan(begin, end - begin),
          .weights = std::span(row_weights_).subspan(begin, end - begin)};
}

}  // namespace millrace
