#include "kernels/ref/ref_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "kernels/checks.h"
#include "kernels/half.h"
#include "kernels/kv_rows.h"
#include "kernels/quantized.h"
#include "kernels/rope_table.h"

namespace millrace::kernels {
namespace {

const TensorView& plain(const Weight& weight) {
  CHECK(weight.layout == WeightLayout::kPlain);
  return weight.view;
}

class RefOps final : public Ops {
 public:
  explicit RefOps(Activations activations) : activations_(activations) {}

  std::string_view name() const override { return "ref"; }

  void products(const Input& x, std::span<const Product> products) override {
    check_input(x);
    std::vector<float> made(x.as_it_is() ? 0 : static_cast<std::size_t>(x.x.count * x.x.width));
    const Rows rows(made.data(), x.x.count, x.x.width);
    if (x.norm.data != nullptr) rms_norm(x.x, x.norm, x.epsilon, rows);
    if (x.up.data != nullptr) swiglu(x.x, x.up, rows);
    for (const Product& product : products) multiply(x.as_it_is() ? x.x : ConstRows(rows), product);
  }

  void embedding(const Weight& matrix, std::span<const int32_t> ids, Rows y) override {
    check_embedding(matrix, ids, y);
    const TensorView& table = plain(matrix);
    for (int64_t r = 0; r < y.count; ++r) {
      const std::vector<float>& row = weight_row(table, ids[static_cast<std::size_t>(r)]);
      std::copy(row.begin(), row.end(), y.row(r));
    }
  }

  void rms_norm(ConstRows x, const TensorView& weight, float epsilon, Rows y) override {
    check_rms_norm(x, weight, y);
    const int64_t group = weight.shape.elements();
    for (int64_t r = 0; r < y.count; ++r) {
      for (int64_t first = 0; first < y.width; first += group) {
        const float* in = x.row(r) + first;
        double squares = 0;
        for (int64_t i = 0; i < group; ++i) squares += double{in[i]} * double{in[i]};
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(group) + double{epsilon});
        for (int64_t i = 0; i < group; ++i) {
          y.row(r)[first + i] = static_cast<float>(in[i] * factor * load_weight(weight.data, weight.dtype, i));
        }
      }
    }
  }

  void add(ConstRows x, Rows y) override {
    check_same_shape(x, y);
    for (int64_t r = 0; r < y.count; ++r) {
      for (int64_t i = 0; i < y.width; ++i) y.row(r)[i] += x.row(r)[i];
    }
  }

  void add_scaled(ConstRows x, const TensorView& scale, Rows y) override {
    check_scale(x, scale, y);
    for (int64_t r = 0; r < y.count; ++r) {
      for (int64_t i = 0; i < y.width; ++i) {
        y.row(r)[i] = static_cast<float>(y.row(r)[i] + double{x.row(r)[i]} * load_weight(scale.data, scale.dtype, i));
      }
    }
  }

  void snake(ConstRows x, const TensorView& frequency, const TensorView& magnitude, Rows y) override {
    check_scale(x, frequency, y);
    check_scale(x, magnitude, y);
    for (int64_t r = 0; r < y.count; ++r) {
      for (int64_t i = 0; i < y.width; ++i) {
        const double v = x.row(r)[i], sine = std::sin(v * load_weight(frequency.data, frequency.dtype, i));
        y.row(r)[i] = static_cast<float>(v + load_weight(magnitude.data, magnitude.dtype, i) * sine * sine);
      }
    }
  }

  void depthwise(ConstRows x, const TensorView& weight, const TensorView& bias, Rows y) override {
    check_depthwise(x, weight, bias, y);
    for (int64_t r = 0; r < y.count; ++r) {
      for (int64_t i = 0; i < y.width; ++i) {
        double sum = load_weight(bias.data, bias.dtype, i);
        for (int64_t k = 0; k < weight.shape[0]; ++k) {
          sum += double{x.row(r + k)[i]} * load_weight(weight.data, weight.dtype, k * y.width + i);
        }
        y.row(r)[i] = static_cast<float>(sum);
      }
    }
  }

  void swiglu(ConstRows gate, ConstRows up, Rows y) override {
    check_same_shape(gate, y);
    check_same_shape(up, y);
    for (int64_t r = 0; r < y.count; ++r) {
      for (int64_t i = 0; i < y.width; ++i) {
        const double g = gate.row(r)[i];
        y.row(r)[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * up.row(r)[i]);
      }
    }
  }

  void layer_norm(ConstRows x, const TensorView& weight, const TensorView& bias, float epsilon, Rows y) override {
    check_layer_norm(x, weight, bias, y);
    const auto width = static_cast<double>(x.width);
    for (int64_t r = 0; r < y.count; ++r) {
      const float* in = x.row(r);
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < x.width; ++i) sum += double{in[i]};
      const double mean = sum / width;
      for (int64_t i = 0; i < x.width; ++i) squares += (in[i] - mean) * (in[i] - mean);
      const double factor = 1.0 / std::sqrt(squares / width + double{epsilon});
      for (int64_t i = 0; i < x.width; ++i) {
        const double w = load_weight(weight.data, weight.dtype, i), b = load_weight(bias.data, bias.dtype, i);
        y.row(r)[i] = static_cast<float>((in[i] - mean) * factor * w + b);
      }
    }
  }

  void gelu(ConstRows x, bool tanh, Rows y) override {
    check_same_shape(x, y);
    constexpr double kRoot2OverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
    for (int64_t r = 0; r < y.count; ++r) {
      for (int64_t i = 0; i < y.width; ++i) {
        const double v = x.row(r)[i];
        const double turned =
            tanh ? std::tanh(kRoot2OverPi * (v + 0.044715 * v * v * v)) : std::erf(v / std::numbers::sqrt2);
        y.row(r)[i] = static_cast<float>(0.5 * v * (1.0 + turned));
      }
    }
  }

  void rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                  Rows sin) override {
    check_rope_table(positions, inv_freq, cos, sin);
    fill_rope_table(positions, inv_freq, scaling, cos, sin);
  }

  void rope(Rows x, int64_t head_dim, ConstRows cos, ConstRows sin) override {
    check_rope(x, head_dim, cos, sin);
    for (int64_t r = 0; r < x.count; ++r) {
      for (int64_t first = 0; first < x.width; first += head_dim) {
        for (int64_t i = 0; i < cos.width; ++i) {
          float& low = x.row(r)[first + i];
          float& high = x.row(r)[first + i + cos.width];
          const double a = low;
          const double b = high;
          low = static_cast<float>(a * cos.row(r)[i] - b * sin.row(r)[i]);
          high = static_cast<float>(b * cos.row(r)[i] + a * sin.row(r)[i]);
        }
      }
    }
  }

  void kv_store(const KvLayer& kv, std::span<const AttentionSequence> sequences, ConstRows k, ConstRows v) override {
    check_kv_store(kv, sequences, k, v);
    for (const AttentionSequence& s : sequences) {
      for (int64_t i = 0; i < s.row_count; ++i) {
        for (int64_t head = 0; head < kv.kv_heads; ++head) {
          const KvAddress address = kv_address(kv, s.pages, head, s.kv_length_before + i);
          store_kv_row(kv, kv.k, address, k.row(s.row_begin + i) + head * kv.head_dim);
          store_kv_row(kv, kv.v, address, v.row(s.row_begin + i) + head * kv.head_dim);
        }
      }
    }
  }

  void attention(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                 const AttentionParams& params, Rows out) override {
    check_attention(q, kv, sequences, params, out);
    for (const AttentionSequence& s : sequences) {
      for (int64_t i = 0; i < s.row_count; ++i) {
        for (int64_t head = 0; head < params.heads; ++head) {
          const int64_t last = s.kv_length_before + (params.causal ? i : s.row_count - 1);
          attend(q.row(s.row_begin + i) + head * kv.head_dim, kv, s, params, head, last,
                 out.row(s.row_begin + i) + head * kv.head_dim);
        }
      }
    }
  }

 private:
  void multiply(ConstRows x, const Product& product) {
    check_product(x, product);
    const TensorView& weight = plain(*product.weight);
    const bool round = activations_ == Activations::kBF16 && weight.dtype == DType::kBF16;
    const Rows& y = product.y;
    const LinearOptions& options = product.options;
    for (int64_t n = 0; n < y.width; ++n) {
      const std::vector<float>& w = weight_row(weight, n);
      for (int64_t m = 0; m < y.count; ++m) {
        double sum = 0;
        for (int64_t k = 0; k < x.width; ++k) {
          const float element = round ? bf16_to_f32(f32_to_bf16(x.row(m)[k])) : x.row(m)[k];
          sum += double{element} * double{w[static_cast<std::size_t>(k)]};
        }
        if (options.bias.data != nullptr) sum += double{load_weight(options.bias.data, options.bias.dtype, n)};
        if (options.accumulate) sum += double{y.row(m)[n]};
        y.row(m)[n] = static_cast<float>(sum);
      }
    }
  }

  // Row `row` of a plain matrix as floats; valid until the next call.
  const std::vector<float>& weight_row(const TensorView& weight, int64_t row) {
    const int64_t columns = weight.shape[1];
    weight_row_.resize(static_cast<std::size_t>(columns));
    if (is_quantized(weight.dtype)) {
      const std::size_t bytes = storage_bytes(weight.dtype, columns);
      const char* blocks = static_cast<const char*>(weight.data) + static_cast<std::size_t>(row) * bytes;
      dequantize_row(weight.dtype, blocks, columns, weight_row_.data());
      return weight_row_;
    }
    for (int64_t i = 0; i < columns; ++i) {
      weight_row_[static_cast<std::size_t>(i)] = load_weight(weight.data, weight.dtype, row * columns + i);
    }
    return weight_row_;
  }

  // One query row and head: softmax(q k^T * scale) v over the visible positions, in two passes.
  void attend(const float* q, const KvLayer& kv, const AttentionSequence& s, const AttentionParams& params,
              int64_t head, int64_t position, float* out) {
    const int64_t kv_head = head / (params.heads / kv.kv_heads);
    const int64_t first = params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0;
    scores_.clear();
    double maximum = -std::numeric_limits<double>::infinity();
    for (int64_t p = first; p <= position; ++p) {
      read_kv_row(kv, kv.k, kv_address(kv, s.pages, kv_head, p), row_);
      double score = 0;
      for (int64_t d = 0; d < kv.head_dim; ++d) score += double{q[d]} * row_[d];
      scores_.push_back(score * double{params.scale});
      maximum = std::max(maximum, scores_.back());
    }
    double sum = 0;
    std::vector<double> acc(static_cast<std::size_t>(kv.head_dim), 0.0);
    for (int64_t p = first; p <= position; ++p) {
      read_kv_row(kv, kv.v, kv_address(kv, s.pages, kv_head, p), row_);
      const double weight = std::exp(scores_[static_cast<std::size_t>(p - first)] - maximum);
      sum += weight;
      for (int64_t d = 0; d < kv.head_dim; ++d) acc[static_cast<std::size_t>(d)] += weight * row_[d];
    }
    for (int64_t d = 0; d < kv.head_dim; ++d) out[d] = static_cast<float>(acc[static_cast<std::size_t>(d)] / sum);
  }

  const Activations activations_;
  std::vector<float> weight_row_;  // of a weight
  std::vector<double> scores_;
  double row_[kMaxHeadDim];  // of K or V, widened
};

}  // namespace

std::unique_ptr<Ops> make_ref_ops(Activations activations) { return std::make_unique<RefOps>(activations); }

}  // namespace millrace::kernels
