#include "kernels/checks.h"

#include "kernels/half.h"

namespace millrace::kernels {
namespace {

void check_weight(const TensorView& weight) {
  CHECK(weight.device == Device::kHost);
  CHECK(is_weight_dtype(weight.dtype));
}

void check_matrix(const Weight& weight) {
  CHECK(weight.view.device == Device::kHost);
  CHECK(is_weight_dtype(weight.dtype()) || is_quantized(weight.dtype()));
  CHECK(weight.view.shape.rank() == 2);
  CHECK(weight.layout == WeightLayout::kPlain ? weight.view.data != nullptr : weight.packed != nullptr);
}

void check_rows(const ConstRows& rows) {
  CHECK(rows.count >= 0 && rows.width >= 0);
  CHECK(rows.count <= 1 || rows.stride >= rows.width);
}

// Of an input that is only read: its rows may overlap.
void check_windows(const ConstRows& rows) { CHECK(rows.count >= 0 && rows.width >= 0 && rows.stride >= 0); }

void check_norm(const ConstRows& x, const TensorView& weight) {
  check_weight(weight);
  CHECK(weight.shape.elements() >= 1);
  CHECK(x.width % weight.shape.elements() == 0);
}

void check_sequences(const KvLayer& kv, std::span<const AttentionSequence> sequences, int64_t rows) {
  CHECK(is_kv_dtype(kv.dtype));
  CHECK(kv.page_size >= 1 && kv.kv_heads >= 1 && kv.head_dim >= 1 && kv.head_dim <= kMaxHeadDim);
  CHECK(kv.head_dim % 2 == 0);
  CHECK(kv.page_count <= 1 || kv.page_stride_bytes >= kv.page_bytes());
  for (const AttentionSequence& s : sequences) {
    CHECK(s.row_begin >= 0 && s.row_count >= 0 && s.row_begin + s.row_count <= rows);
    CHECK(s.kv_length_before >= 0);
    const int64_t length = s.kv_length_before + s.row_count;
    CHECK(static_cast<int64_t>(s.pages.size()) >= (length + kv.page_size - 1) / kv.page_size);
  }
}

}  // namespace

void check_input(const Input& x) {
  check_windows(x.x);
  CHECK(x.norm.data == nullptr || x.up.data == nullptr);
  if (x.norm.data != nullptr) check_norm(x.x, x.norm);
  if (x.up.data == nullptr) return;
  check_rows(x.up);
  CHECK(x.up.count == x.x.count && x.up.width == x.x.width);
}

void check_product(const Input& input, const Product& product) {
  const ConstRows& x = input.x;
  const Weight& weight = *product.weight;
  const Rows& y = product.y;
  const LinearOptions& options = product.options;
  check_rows(y);
  check_matrix(weight);
  CHECK(weight.columns() == x.width);
  CHECK(weight.rows() == y.width);
  CHECK(x.count == y.count);
  if (options.bias.data != nullptr) {
    check_weight(options.bias);
    CHECK(options.bias.shape.elements() == y.width);
  }
}

void check_embedding(const Weight& table, std::span<const int32_t> ids, const Rows& y) {
  check_rows(y);
  check_matrix(table);
  CHECK(table.columns() == y.width);
  CHECK(static_cast<int64_t>(ids.size()) == y.count);
  for (int32_t id : ids) CHECK(id >= 0 && id < table.rows());
}

void check_rms_norm(const ConstRows& x, const TensorView& weight, const Rows& y) {
  check_same_shape(x, y);
  check_norm(x, weight);
}

void check_layer_norm(const ConstRows& x, const TensorView& weight, const TensorView& bias, const Rows& y) {
  check_same_shape(x, y);
  CHECK(weight.shape.elements() == x.width && bias.shape.elements() == x.width);
}

void check_scale(const ConstRows& x, const TensorView& scale, const Rows& y) {
  check_same_shape(x, y);
  check_weight(scale);
  CHECK(scale.shape.elements() == x.width);
}

void check_depthwise(const ConstRows& x, const TensorView& weight, const TensorView& bias, const Rows& y) {
  check_rows(x);
  check_rows(y);
  check_weight(weight);
  check_weight(bias);
  CHECK(weight.shape.rank() == 2 && weight.shape[0] >= 1 && weight.shape[1] == x.width && y.width == x.width);
  CHECK(bias.shape.elements() == x.width);
  CHECK(y.count == 0 || x.count == y.count + weight.shape[0] - 1);
}

void check_same_shape(const ConstRows& x, const Rows& y) {
  check_rows(x);
  check_rows(y);
  CHECK(x.count == y.count && x.width == y.width);
}

void check_rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, const Rows& cos,
                      const Rows& sin) {
  check_same_shape(cos, sin);
  CHECK(static_cast<int64_t>(positions.size()) == cos.count);
  CHECK(static_cast<int64_t>(inv_freq.size()) == cos.width);
}

void check_rope(const Rows& x, int64_t head_dim, const ConstRows& cos, const ConstRows& sin) {
  check_rows(x);
  check_rows(cos);
  check_rows(sin);
  CHECK(cos.count == x.count && sin.count == x.count && cos.width == sin.width);
  CHECK(head_dim >= 1 && x.width % head_dim == 0);
  CHECK(2 * cos.width <= head_dim);
}

void check_kv_store(const KvLayer& kv, std::span<const AttentionSequence> sequences, const ConstRows& k,
                    const ConstRows& v) {
  check_rows(k);
  check_rows(v);
  CHECK(k.count == v.count);
  CHECK(k.width == kv.kv_heads * kv.head_dim && v.width == k.width);
  check_sequences(kv, sequences, k.count);
  for (const AttentionSequence& s : sequences) {
    const int64_t last = (s.kv_length_before + s.row_count - 1) / kv.page_size;
    for (int64_t page = s.kv_length_before / kv.page_size; s.row_count > 0 && page <= last; ++page) {
      const int32_t id = s.pages[static_cast<std::size_t>(page)];
      CHECK(id >= 0 && id < kv.page_count);
    }
  }
}

void check_attention(const ConstRows& q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                     const AttentionParams& params, const Rows& out) {
  check_same_shape(q, out);
  CHECK(params.heads >= 1 && params.heads % kv.kv_heads == 0);
  CHECK(params.window >= 0 && (params.causal || params.window == 0));
  CHECK(q.width == params.heads * kv.head_dim);
  check_sequences(kv, sequences, q.count);
  for (const AttentionSequence& s : sequences) {
    const int64_t used = (s.kv_length_before + s.row_count + kv.page_size - 1) / kv.page_size;
    for (int64_t page = 0; page < used; ++page) {
      const int32_t id = s.pages[static_cast<std::size_t>(page)];
      // A sliding window may have released the pages before it, so only ids that can be read are checked.
      const bool behind_window =
          params.window > 0 && (page + 1) * kv.page_size <= s.kv_length_before + 1 - params.window;
      CHECK(behind_window || (id >= 0 && id < kv.page_count));
    }
  }
}

}  // namespace millrace::kernels
