#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/cpu_linear.h"
#include "kernels/cpu/panel_linear.h"
#include "kernels/cpu/tiles.h"
#include "kernels/kv_rows.h"
#include "kernels/rope_table.h"

namespace millrace::kernels {
namespace {

// Below these amounts of work a loop runs on the calling thread: waking a sleeping thread costs some microseconds.
constexpr int64_t kInlineProducts = 64 * 1024;
constexpr int64_t kInlineElements = 16 * 1024;
KvKind kv_kind(DType type) {
  if (type == DType::kF16) return KvKind::kF16;
  if (type == DType::kBF16) return KvKind::kBF16;
  return type == DType::kI8 ? KvKind::kI8 : KvKind::kF32;
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

class CpuOps final : public Ops {
 public:
  CpuOps(std::string_view name, const KernelTable& table, ThreadPool& pool)
      : name_(name), table_(table), pool_(pool), panels_(panel_table(name), pool), linear_(table.linear, pool) {
    for (int i = 0; i < pool.size(); ++i) scratch_.emplace_back(kAttentionScratch * sizeof(float));
  }

  std::string_view name() const override { return name_; }

  void linear(ConstRows x, const Weight& matrix, Rows y, const LinearOptions& options) override {
    check_linear(x, matrix, y, options);
    if (y.count == 0 || y.width == 0) return;
    const float* bias = options.bias.data != nullptr ? widened(options.bias) : nullptr;
    if (matrix.layout == WeightLayout::kPanels) return panels_.linear(x, matrix, bias, y, options.accumulate);
    linear_.run(x, matrix, y, bias, options.accumulate);
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

  void swiglu(ConstRows gate, ConstRows up, Rows y) override {
    check_same_shape(gate, y);
    check_same_shape(up, y);
    for_rows(y.count, y.width, [&](int64_t r) { table_.swiglu(gate.row(r), up.row(r), y.width, y.row(r)); });
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
          const KvPlace place = kv_place(kv, s.pages, head, s.kv_length_before + i);
          store_kv_row(kv, kv.k, place, k.row(s.row_begin + i) + head * kv.head_dim);
          store_kv_row(kv, kv.v, place, v.row(s.row_begin + i) + head * kv.head_dim);
        }
      });
    }
  }

  void attention(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                 const AttentionParams& params, Rows out) override {
    check_attention(q, kv, sequences, params, out);
    const int64_t group = params.heads / kv.kv_heads;
    const int64_t rows_per_part = std::max<int64_t>(1, kAttentionQueries / group);
    int64_t products = 0;
    attention_parts_.clear();
    for (const AttentionSequence& s : sequences) {
      products += s.row_count * (s.kv_length_before + s.row_count) * q.width;
      // The last rows see most keys: they go first, so that no thread is left with a long part at the end.
      for (int64_t row = round_up(s.row_count, rows_per_part) - rows_per_part; row >= 0; row -= rows_per_part) {
        for (int64_t head = 0; head < kv.kv_heads; ++head) {
          attention_parts_.push_back({&s, row, std::min(s.row_count, row + rows_per_part), head});
        }
      }
    }
    const int64_t count = static_cast<int64_t>(attention_parts_.size());
    pool_.parallel_for(count, products < kInlineProducts ? std::max<int64_t>(count, 1) : 1,
                       [&](int64_t begin, int64_t end, int worker) {
                         for (int64_t i = begin; i < end; ++i) {
                           attend(q, kv, attention_parts_[static_cast<std::size_t>(i)], params, group, out, worker);
                         }
                       });
  }

  void argmax(ConstRows x, std::span<int32_t> indices) override {
    CHECK(static_cast<int64_t>(indices.size()) == x.count);
    for_rows(x.count, x.width,
             [&](int64_t r) { indices[static_cast<std::size_t>(r)] = table_.argmax(x.row(r), x.width); });
  }

 private:
  struct AttentionRange {
    const AttentionSequence* sequence;
    int64_t row_begin, row_end;  // within the sequence
    int64_t kv_head;
  };

  float* scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)].as<float>().data(); }

  // A small weight (bias, norm) as f32; valid until the next call.
  const float* widened(const TensorView& weight) {
    widened_.resize(static_cast<std::size_t>(weight.shape.elements()));
    table_.widen(weight_kind(weight.dtype), weight.data, weight.shape.elements(), widened_.data());
    return widened_.data();
  }

  template <typename F>
  void for_rows(int64_t count, int64_t elements_per_row, F row) {
    const int64_t grain = std::max<int64_t>(1, kInlineElements / std::max<int64_t>(elements_per_row, 1));
    pool_.parallel_for(count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) row(r);
    });
  }

  void attend(const ConstRows& q, const KvLayer& kv, const AttentionRange& range, const AttentionParams& params,
              int64_t group, const Rows& out, int worker) {
    const AttentionSequence& s = *range.sequence;
    table_.attention({
        .q = q.data,
        .q_stride = q.stride,
        .out = out.data,
        .out_stride = out.stride,
        .k = static_cast<const char*>(kv.k),
        .v = static_cast<const char*>(kv.v),
        .kind = kv_kind(kv.dtype),
        .pages = s.pages.data(),
        .page_size = kv.page_size,
        .page_stride_bytes = kv.page_stride_bytes,
        .head_dim = kv.head_dim,
        .kv_head = range.kv_head,
        .group = group,
        .row_begin = s.row_begin + range.row_begin,
        .row_end = s.row_begin + range.row_end,
        .position = s.kv_length_before + range.row_begin,
        .window = params.window,
        .scale = params.scale,
        .scratch = scratch(worker),
    });
  }

  std::string_view name_;
  const KernelTable& table_;
  ThreadPool& pool_;
  PanelLinear panels_;           // products with packed quantized weights
  CpuLinear linear_;             // products with all others
  std::vector<Buffer> scratch_;  // one per worker
  std::vector<float> widened_;
  std::vector<AttentionRange> attention_parts_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(std::string_view name, const KernelTable& table, ThreadPool& pool) {
  return std::make_unique<CpuOps>(name, table, pool);
}

}  // namespace millrace::kernels
