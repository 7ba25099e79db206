#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/attention_run.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/panel_linear.h"
#include "kernels/cpu/tiles.h"
#include "kernels/kv_rows.h"
#include "kernels/rope_table.h"

namespace millrace::kernels {
namespace {

// Below this amount of work a loop runs on the calling thread: waking a sleeping thread costs some microseconds.
constexpr int64_t kInlineElements = 16 * 1024;

std::vector<Buffer> make_scratch(const ThreadPool& pool) {
  std::vector<Buffer> scratch;
  scratch.reserve(static_cast<std::size_t>(pool.size()));
  for (int i = 0; i < pool.size(); ++i) scratch.emplace_back(kAttentionScratch * sizeof(float));
  return scratch;
}

class CpuOps final : public Ops {
 public:
  CpuOps(std::string_view name, const KernelTable& table, ThreadPool& pool)
      : name_(name),
        table_(table),
        pool_(pool),
        panels_(panel_table(name), pool),
        linear_(table.linear, pool),
        scratch_(make_scratch(pool)),
        attention_(table_, pool, scratch_) {}

  std::string_view name() const override { return name_; }

  void products(const Input& input, std::span<const Product> products) override {
    check_input(input);
    for (const Product& product : products) check_product(input, product);
    if (input.x.count == 0) return;
    const CpuInput x(table_, input, input.norm.data != nullptr ? widened(input.norm) : nullptr);
    const std::span<const CpuProduct> all = with_biases(products);
    for (std::size_t begin = 0; begin < all.size();) {
      std::size_t end = begin + 1;
      while (end < all.size() && end - begin < kMaxProducts && one_pass(all[begin], all[end])) ++end;
      const std::span<const CpuProduct> group = all.subspan(begin, end - begin);
      if (group.front().weight->layout == WeightLayout::kPanels) {
        panels_.run(x, group);
      } else {
        linear_.run(x, group);
      }
      begin = end;
    }
  }

  void embedding(const Weight& matrix, std::span<const int32_t> ids, Rows y) override {
    check_embedding(matrix, ids, y);
    if (matrix.layout == WeightLayout::kPanels) return panels_.embedding(matrix, ids, y);
    if (matrix.layout == WeightLayout::kTiles) {
      return for_rows(y.count, y.width,
                      [&](int64_t r) { read_tiles_row(matrix, ids[static_cast<std::size_t>(r)], y.row(r)); });
    }
    const TensorView& table = matrix.view;
    const WeightKind kind = weight_kind(table.dtype);
    const int64_t row_bytes = y.width * static_cast<int64_t>(dtype_size(table.dtype));
    for_rows(y.count, y.width, [&](int64_t r) {
      const char* from = static_cast<const char*>(table.data) + ids[static_cast<std::size_t>(r)] * row_bytes;
      table_.widen(kind, from, y.width, y.row(r));
    });
  }

  void rms_norm(ConstRows x, const TensorView& weight, float epsilon, Rows y) override {
    check_rms_norm(x, weight, y);
    const float* wide = widened(weight);
    const int64_t group = weight.shape.elements();
    for_rows(y.count, y.width, [&](int64_t r) { table_.rms_norm(x.row(r), x.width, wide, group, epsilon, y.row(r)); });
  }

  void add(ConstRows x, Rows y) override {
    check_same_shape(x, y);
    for_rows(y.count, y.width, [&](int64_t r) { table_.add(x.row(r), y.width, y.row(r)); });
  }

  void add_scaled(ConstRows x, const TensorView& scale, Rows y) override {
    check_scale(x, scale, y);
    const float* wide = widened(scale);
    for_rows(y.count, y.width, [&](int64_t r) { table_.add_scaled(x.row(r), y.width, wide, y.row(r)); });
  }

  void snake(ConstRows x, const TensorView& frequency, const TensorView& magnitude, Rows y) override {
    check_scale(x, frequency, y);
    check_scale(x, magnitude, y);
    const float* wide = widened(frequency);
    const float* wide_magnitude = widened(magnitude, wide_bias_);
    for_rows(y.count, 4 * y.width,
             [&](int64_t r) { table_.snake(x.row(r), y.width, wide, wide_magnitude, kMaxSnakeAngle, y.row(r)); });
  }

  void depthwise(ConstRows x, const TensorView& weight, const TensorView& bias, Rows y) override {
    check_depthwise(x, weight, bias, y);
    const float* wide = widened(weight);
    const float* wide_bias = widened(bias, wide_bias_);
    const int64_t taps = weight.shape[0];
    for_rows(y.count, taps * y.width,
             [&](int64_t r) { table_.depthwise(x.row(r), x.stride, y.width, taps, wide, wide_bias, y.row(r)); });
  }

  void swiglu(ConstRows gate, ConstRows up, Rows y) override {
    check_same_shape(gate, y);
    check_same_shape(up, y);
    for_rows(y.count, y.width, [&](int64_t r) { table_.swiglu(gate.row(r), up.row(r), y.width, y.row(r)); });
  }

  void layer_norm(ConstRows x, const TensorView& weight, const TensorView& bias, float epsilon, Rows y) override {
    check_layer_norm(x, weight, bias, y);
    const float* wide = widened(weight);
    const float* wide_bias = widened(bias, wide_bias_);
    for_rows(y.count, 2 * y.width,
             [&](int64_t r) { table_.layer_norm(x.row(r), x.width, wide, wide_bias, epsilon, y.row(r)); });
  }

  void gelu(ConstRows x, bool tanh, Rows y) override {
    check_same_shape(x, y);
    // An exponential costs about as much as 4 elements of other ops.
    for_rows(y.count, 4 * y.width, [&](int64_t r) { table_.gelu(x.row(r), y.width, tanh, y.row(r)); });
  }

  void rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                  Rows sin) override {
    check_rope_table(positions, inv_freq, cos, sin);
    // A sine and a cosine cost about as much as 32 elements of other ops.
    for_rows(cos.count, cos.width * 32, [&](int64_t r) {
      fill_rope_table(positions.subspan(static_cast<std::size_t>(r), 1), inv_freq, scaling, cos.slice(r, 1),
                      sin.slice(r, 1));
    });
  }

  void rope(Rows x, int64_t head_dim, ConstRows cos, ConstRows sin) override {
    check_rope(x, head_dim, cos, sin);
    for_rows(x.count, x.width,
             [&](int64_t r) { table_.rope(x.row(r), x.width, head_dim, cos.row(r), sin.row(r), cos.width); });
  }

  void kv_store(const KvLayer& kv, std::span<const AttentionSequence> sequences, ConstRows k, ConstRows v) override {
    check_kv_store(kv, sequences, k, v);
    for (const AttentionSequence& s : sequences) {
      for_rows(s.row_count, 2 * k.width, [&](int64_t i) {
        for (int64_t head = 0; head < kv.kv_heads; ++head) {
          const KvAddress address = kv_address(kv, s.pages, head, s.kv_length_before + i);
          store_kv_row(kv, kv.k, address, k.row(s.row_begin + i) + head * kv.head_dim);
          store_kv_row(kv, kv.v, address, v.row(s.row_begin + i) + head * kv.head_dim);
        }
      });
    }
  }

  void attention(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                 const AttentionParams& params, Rows out) override {
    check_attention(q, kv, sequences, params, out);
    attention_(q, kv, sequences, params, out);
  }

 private:
  // The products that there are, with their biases as f32; valid until the next call.
  std::span<const CpuProduct> with_biases(std::span<const Product> products) {
    int64_t floats = 0;
    for (const Product& p : products) floats += p.options.bias.data != nullptr ? p.y.width : 0;
    biases_.resize(static_cast<std::size_t>(floats));
    products_.clear();
    float* at = biases_.data();
    for (const Product& p : products) {
      if (p.y.width == 0) continue;
      products_.push_back({p.weight, p.y, nullptr, p.options.accumulate});
      const TensorView& bias = p.options.bias;
      if (bias.data == nullptr) continue;
      table_.widen(weight_kind(bias.dtype), bias.data, p.y.width, at);
      products_.back().bias = at;
      at += p.y.width;
    }
    return products_;
  }

  // Whether x is prepared alike for both.
  static bool one_pass(const CpuProduct& a, const CpuProduct& b) {
    return a.weight->layout == b.weight->layout && a.weight->dtype() == b.weight->dtype();
  }

  // A small weight (a norm's) as f32; valid until the next call.
  const float* widened(const TensorView& weight) { return widened(weight, widened_); }
  const float* widened(const TensorView& weight, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(weight.shape.elements()));
    table_.widen(weight_kind(weight.dtype), weight.data, weight.shape.elements(), to.data());
    return to.data();
  }

  template <typename F>
  void for_rows(int64_t count, int64_t elements_per_row, F row) {
    const int64_t grain = std::max<int64_t>(1, kInlineElements / std::max<int64_t>(elements_per_row, 1));
    pool_.parallel_for(count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) row(r);
    });
  }

  std::string_view name_;
  const KernelTable table_;
  ThreadPool& pool_;
  PanelLinear panels_;           // products with packed quantized weights
  CpuLinear linear_;             // products with all others
  std::vector<Buffer> scratch_;  // one per worker
  std::vector<float> widened_, wide_bias_, biases_;
  std::vector<CpuProduct> products_;
  AttentionRun attention_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(std::string_view name, const KernelTable& table, ThreadPool& pool) {
  return std::make_unique<CpuOps>(name, table, pool);
}

}  // namespace millrace::kernels
