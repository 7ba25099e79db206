// The small operations of a mixture of experts: which experts a row goes to, and how rows travel to an expert and back.
// They move little and compute less, so one text serves every processor; the experts' matrices are Ops::linear.
//
// "The same bits" holds here too: each row's result is a function of that row alone, and rows are added in the order in
// which the caller sends them.
//
// Thread safety: pure functions over what their arguments name.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"

namespace millrace::kernels {

// For each row of logits [rows, experts]: the `k` likeliest experts in ascending order of their number, and their
// softmax probabilities over all experts, divided by the sum of the k where `normalize`. Of equal logits the lower
// expert wins. chosen and weights: [rows * k]. A row with a NaN gets valid experts and NaN weights.
// Formula: Qwen3-MoE as published in transformers (Qwen3MoeTopKRouter): softmax first, then the choice.
void route(ConstRows logits, int64_t k, bool normalize, std::span<int32_t> chosen, std::span<float> weights);

// y[i] = x[rows[i]].
void gather_rows(ConstRows x, std::span<const int32_t> rows, Rows y);

// y[rows[i]] += scales[i] * x[i], i ascending; the product is rounded before the sum.
void scatter_add(ConstRows x, std::span<const int32_t> rows, std::span<const float> scales, Rows y);

}  // namespace millrace::kernels
