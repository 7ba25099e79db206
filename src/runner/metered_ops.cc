#include "runner/metered_ops.h"

#include <utility>

#include "base/clock.h"

namespace millrace {
namespace {

using namespace kernels;

// Key positions that the rows of a sequence see, added up: row i sees kv_length_before + i + 1, or the window.
double positions_seen(const AttentionSequence& s, int64_t window) {
  double sum = 0;
  for (int64_t i = 0; i < s.row_count; ++i) {
    const int64_t seen = s.kv_length_before + i + 1;
    sum += static_cast<double>(window > 0 && window < seen ? window : seen);
  }
  return sum;
}

class MeteredOps final : public Ops {
 public:
  MeteredOps(std::unique_ptr<Ops> ops, OpMeters& meters) : ops_(std::move(ops)), meters_(meters) {}

  std::string_view name() const override { return ops_->name(); }

  void products(const Input& x, std::span<const Product> products) override {
    double bytes = 0, operations = x.as_it_is() ? 0 : 4.0 * elements(x.x);
    for (const Product& one : products) {
      bytes += static_cast<double>(one.weight->size_bytes());
      operations += 2.0 * static_cast<double>(x.x.count) * static_cast<double>(one.weight->rows()) *
                    static_cast<double>(one.weight->columns());
    }
    meter(OpKind::kLinear, bytes, operations, [&] { ops_->products(x, products); });
  }
  void embedding(const Weight& table, std::span<const int32_t> ids, Rows y) override {
    meter(OpKind::kEmbedding, 0, 0, [&] { ops_->embedding(table, ids, y); });
  }
  void rms_norm(ConstRows x, const TensorView& weight, float epsilon, Rows y) override {
    meter(OpKind::kRmsNorm, 0, 4.0 * elements(y), [&] { ops_->rms_norm(x, weight, epsilon, y); });
  }
  void add(ConstRows x, Rows y) override {
    meter(OpKind::kAdd, 0, elements(y), [&] { ops_->add(x, y); });
  }
  void add_scaled(ConstRows x, const TensorView& scale, Rows y) override {
    meter(OpKind::kAddScaled, 0, 2.0 * elements(y), [&] { ops_->add_scaled(x, scale, y); });
  }
  void snake(ConstRows x, const TensorView& frequency, const TensorView& magnitude, Rows y) override {
    meter(OpKind::kSnake, 0, 24.0 * elements(y), [&] { ops_->snake(x, frequency, magnitude, y); });
  }
  void depthwise(ConstRows x, const TensorView& weight, const TensorView& bias, Rows y) override {
    const double taps = static_cast<double>(weight.shape[0]);
    meter(OpKind::kDepthwise, 0, 2.0 * taps * elements(y), [&] { ops_->depthwise(x, weight, bias, y); });
  }
  void swiglu(ConstRows gate, ConstRows up, Rows y) override {
    meter(OpKind::kSwiglu, 0, 4.0 * elements(y), [&] { ops_->swiglu(gate, up, y); });
  }
  void layer_norm(ConstRows x, const TensorView& weight, const TensorView& bias, float epsilon, Rows y) override {
    meter(OpKind::kLayerNorm, 0, 8.0 * elements(y), [&] { ops_->layer_norm(x, weight, bias, epsilon, y); });
  }
  void gelu(ConstRows x, bool tanh, Rows y) override {
    meter(OpKind::kGelu, 0, 8.0 * elements(y), [&] { ops_->gelu(x, tanh, y); });
  }
  void rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                  Rows sin) override {
    meter(OpKind::kRopeTable, 0, elements(cos), [&] { ops_->rope_table(positions, inv_freq, scaling, cos, sin); });
  }
  void rope(Rows x, int64_t head_dim, ConstRows cos, ConstRows sin) override {
    meter(OpKind::kRope, 0, 3.0 * elements(x), [&] { ops_->rope(x, head_dim, cos, sin); });
  }
  void kv_store(const KvLayer& kv, std::span<const AttentionSequence> sequences, ConstRows k, ConstRows v) override {
    meter(OpKind::kKvStore, 0, 0, [&] { ops_->kv_store(kv, sequences, k, v); });
  }
  void attention(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                 const AttentionParams& params, Rows out) override {
    double bytes = 0, products = 0;
    for (const AttentionSequence& s : sequences) {
      const int64_t length = s.kv_length_before + s.row_count;
      bytes += 2.0 * static_cast<double>(length * kv.kv_heads * (kv.row_bytes() + kv.scale_bytes()));
      products += 2.0 * positions_seen(s, params.window) * static_cast<double>(q.width);
    }
    meter(OpKind::kAttention, bytes, 2 * products, [&] { ops_->attention(q, kv, sequences, params, out); });
  }

 private:
  static double elements(const ConstRows& rows) { return static_cast<double>(rows.count * rows.width); }

  template <typename F>
  void meter(OpKind kind, double bytes, double operations, F&& run) {
    const int64_t begin = monotonic_ns();
    run();
    OpMeter& at = meters_[static_cast<std::size_t>(kind)];
    at.ns += monotonic_ns() - begin;
    at.bytes += bytes;
    at.operations += operations;
    ++at.calls;
  }

  const std::unique_ptr<Ops> ops_;
  OpMeters& meters_;
};

}  // namespace

std::string_view op_name(OpKind kind) {
  static constexpr std::string_view kNames[kOpKinds] = {
      "linear", "embedding",  "rms_norm", "add",        "add_scaled", "snake",    "depthwise",
      "swiglu", "layer_norm", "gelu",     "rope_table", "rope",       "kv_store", "attention"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::unique_ptr<Ops> meter_ops(std::unique_ptr<Ops> ops, OpMeters& meters) {
  return std::make_unique<MeteredOps>(std::move(ops), meters);
}

}  // namespace millrace
