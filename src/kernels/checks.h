// The contract of every op as CHECKs, shared by all implementations: shapes, dtypes, page tables.
// A violation is a bug of the caller; data from files and requests was validated long before it comes here.
// Thread safety: pure functions.
#pragma once

#include "kernels/ops.h"

namespace millrace::kernels {

void check_input(const Input& x);
void check_product(const Input& x, const Product& product);
void check_embedding(const Weight& table, std::span<const int32_t> ids, const Rows& y);
void check_rms_norm(const ConstRows& x, const TensorView& weight, const Rows& y);
void check_layer_norm(const ConstRows& x, const TensorView& weight, const TensorView& bias, const Rows& y);
void check_scale(const ConstRows& x, const TensorView& scale, const Rows& y);
void check_depthwise(const ConstRows& x, const TensorView& weight, const TensorView& bias, const Rows& y);
void check_same_shape(const ConstRows& x, const Rows& y);
void check_rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, const Rows& cos,
                      const Rows& sin);
void check_rope(const Rows& x, int64_t head_dim, const ConstRows& cos, const ConstRows& sin);
void check_kv_store(const KvLayer& kv, std::span<const AttentionSequence> sequences, const ConstRows& k,
                    const ConstRows& v);
void check_attention(const ConstRows& q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                     const AttentionParams& params, const Rows& out);

}  // namespace millrace::kernels
