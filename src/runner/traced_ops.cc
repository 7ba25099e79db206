#include "runner/traced_ops.h"

#include <utility>

#include "base/trace.h"

namespace millrace {
namespace {

using namespace kernels;

class KernelSpan : public trace::Span {
 public:
  KernelSpan(const char* name, int64_t rows) : Span(name, "kernel") { note("rows", rows); }
};

class TracedOps final : public Ops {
 public:
  explicit TracedOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}

  std::string_view name() const override { return ops_->name(); }

  void products(const Input& x, std::span<const Product> products) override {
    KernelSpan span("linear", x.x.count);
    ops_->products(x, products);
  }
  void embedding(const Weight& table, std::span<const int32_t> ids, Rows y) override {
    KernelSpan span("embedding", y.count);
    ops_->embedding(table, ids, y);
  }
  void rms_norm(ConstRows x, const TensorView& weight, float epsilon, Rows y) override {
    KernelSpan span("rms_norm", x.count);
    ops_->rms_norm(x, weight, epsilon, y);
  }
  void add(ConstRows x, Rows y) override {
    KernelSpan span("add", x.count);
    ops_->add(x, y);
  }
  void add_scaled(ConstRows x, const TensorView& scale, Rows y) override {
    KernelSpan span("add_scaled", x.count);
    ops_->add_scaled(x, scale, y);
  }
  void snake(ConstRows x, const TensorView& frequency, const TensorView& magnitude, Rows y) override {
    KernelSpan span("snake", x.count);
    ops_->snake(x, frequency, magnitude, y);
  }
  void depthwise(ConstRows x, const TensorView& weight, const TensorView& bias, Rows y) override {
    KernelSpan span("depthwise", y.count);
    ops_->depthwise(x, weight, bias, y);
  }
  void swiglu(ConstRows gate, ConstRows up, Rows y) override {
    KernelSpan span("swiglu", y.count);
    ops_->swiglu(gate, up, y);
  }
  void layer_norm(ConstRows x, const TensorView& weight, const TensorView& bias, float epsilon, Rows y) override {
    KernelSpan span("layer_norm", x.count);
    ops_->layer_norm(x, weight, bias, epsilon, y);
  }
  void gelu(ConstRows x, bool tanh, Rows y) override {
    KernelSpan span("gelu", x.count);
    ops_->gelu(x, tanh, y);
  }
  void rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                  Rows sin) override {
    KernelSpan span("rope_table", cos.count);
    ops_->rope_table(positions, inv_freq, scaling, cos, sin);
  }
  void rope(Rows x, int64_t head_dim, ConstRows cos, ConstRows sin) override {
    KernelSpan span("rope", x.count);
    ops_->rope(x, head_dim, cos, sin);
  }
  void kv_store(const KvLayer& kv, std::span<const AttentionSequence> sequences, ConstRows k, ConstRows v) override {
    KernelSpan span("kv_store", k.count);
    ops_->kv_store(kv, sequences, k, v);
  }
  void attention(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                 const AttentionParams& params, Rows out) override {
    KernelSpan span("attention", q.count);
    ops_->attention(q, kv, sequences, params, out);
  }

 private:
  const std::unique_ptr<Ops> ops_;
};

}  // namespace

std::unique_ptr<kernels::Ops> trace_ops(std::unique_ptr<kernels::Ops> ops) {
  return std::make_unique<TracedOps>(std::move(ops));
}

}  // namespace millrace
