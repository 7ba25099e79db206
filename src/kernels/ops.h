// The set of operations that models are written in: the one border between architectures and hardware.
//
// An `Ops` is one implementation: "ref" (scalar, f64 sums, the oracle), "generic" (any x86-64 or other CPU), "avx2"
// (AVX2 + FMA + F16C), "avx512" (AVX-512 F, BW, VL, DQ as well), "amx" (avx512, with tile products for bf16
// weights). make_ops() picks the best that the processor has; the environment variable MILLRACE_ISA forces one.
// Activations are f32; weights are f32, f16 or bf16 straight from a mapped file, at any byte address, or packed
// (kernels/weight.h), which is the fast way.
//
// THE SAME BITS. Inside one implementation each output element is a function of its own inputs alone, computed in one
// fixed order. It never depends on the other rows of the batch, on how rows are cut into calls (chunked prefill or
// decode), on the page size or page ids, on strides, addresses, or the number of threads. The orders are:
//   linear     of plain weights (f32, f16, bf16) in generic, avx2 and avx512: for each block of 256 of k one chain
//              sum = x[k] * w[k] + sum, k ascending from +0 (fused in avx2 and avx512, which therefore agree to the
//              bit; multiply then add in generic); then the blocks' sums, ascending; then + bias, then + the old y
//              where accumulating. The same for weights in tiles and for weights as a file holds them. amx, bf16
//              weights: x = h + m + l, three bf16 numbers that hold all its bits (cut, not rounded); for each 32 of k,
//              ascending from +0, one tile product each with h, m and l onto one f32 sum; then + bias, then + the old
//              y. The tile product takes numbers below 2^-126 for zero, and an infinite weight gives NaN.
//              With Activations::kBF16, of bf16 weights: x is rounded to bf16, then for each block of 256 of k one
//              chain from +0 over the pairs (2i, 2i+1), ascending, sum = x[2i] * w[2i] + (x[2i+1] * w[2i+1] + sum), and
//              on as above; numbers below 2^-126 are zero. generic, avx2 and avx512 agree to the bit, with AVX512_BF16
//              and without. amx: one tile product for each 32 of k. Of quantized weights, in all but ref: each row of x
//              is quantized too, by 32 elements: dx = max |x| / 127 in f32, q = x * (127 / max |x|) to the nearest
//              integer, ties to even; the products of integers are summed exactly; per block of 32 of k, ascending from
//              +0, sum = (dw * dx) * isum + sum, fused in avx2, avx512 and amx, which therefore agree to the bit.
//              kernels/cpu/panel_table.h has the types with blocks of 256 and the rest. A block of x with a NaN or an
//              infinity gives NaN in all of that row. ref reads the blocks as floats and sums in f64 with x as it is.
//   rms_norm   of squares: 4 W lanes, W = 8 (16 in avx512 and amx), lane l sums x[i]^2 over i = l, l + 4 W, ... from
//              +0, ascending; what is left after the last whole group of 4 W goes to lanes 0 .. W-1 in turn. Then lanes
//              l, l + W, l + 2 W and l + 3 W are added as (0+1) + (2+3); then, where W is 16, l and l + 8; then eight
//              as ((0+1) + (2+3)) + ((4+5) + (6+7)).
//   layer_norm of elements as rms_norm of squares, divided by their count: the mean; then of the squares of what each
//              element is above it, rounded, as rms_norm; then that * (1 / root) * weight + bias, fused where FMA is.
//   attention  per query row and head: key positions are visited in blocks of kAttentionBlock and ranges of
//              kAttentionRange, both aligned to position 0. A score is one chain of additions over ascending d from +0,
//              times the key's scale (int8), times scale. Per block: the maximum is raised; the accumulator and the sum
//              are multiplied by exp(old - new); probabilities are summed in W lanes, W as above, lane l taking the
//              positions l, l + W, ...; values are added with ascending position, each times its probability (int8:
//              times the probability times the value's scale). A range begins with nothing; after it, its lanes are
//              added as in rms_norm and its sums are added to those of the ranges before it, both scaled to the greater
//              maximum. Invisible positions are never read, so pages may hold anything there, NaN included. All of it
//              is f32 arithmetic on stored values, which widen exactly.
//   depthwise  the bias, then + x[t + k] * w[k] with ascending k, fused where FMA is.
// Different implementations agree to rounding (tests state the tolerance), not to the bit. "ref" sums in f64 with
// ascending k and keeps the same promise. NaN in an element's inputs gives NaN in that element and in no other.
//
// Owner: the runner makes one Ops and a ThreadPool and hands them to the model. Threads: an Ops is called by one thread
// at a time (it owns scratch and drives the pool). Shapes are the model's business, checked when weights were loaded;
// here a mismatch is a programmer error (CHECK).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/weight.h"
#include "tensor/tensor.h"

namespace millrace::kernels {

// Key positions per softmax block and per range of blocks that is summed apart: part of "the same bits".
inline constexpr int64_t kAttentionBlock = 64;
inline constexpr int64_t kAttentionRange = 128;
inline constexpr int64_t kMaxHeadDim = 256;
inline constexpr float kMaxSnakeAngle = 8192.0f;

// `count` rows of `width` f32 elements; row r begins at data + r * stride. A column slice of a wider matrix (the q part
// of a fused qkv) is a Rows with a bigger stride.
struct Rows {
  float* data = nullptr;
  int64_t count = 0;
  int64_t width = 0;
  int64_t stride = 0;

  Rows() = default;
  Rows(float* data, int64_t count, int64_t width) : Rows(data, count, width, width) {}
  Rows(float* data, int64_t count, int64_t width, int64_t stride)
      : data(data), count(count), width(width), stride(stride) {}
  float* row(int64_t r) const { return data + r * stride; }
  Rows columns(int64_t begin, int64_t n) const { return {data + begin, count, n, stride}; }
  Rows slice(int64_t begin, int64_t n) const { return {data + begin * stride, n, width, stride}; }
};

struct ConstRows {
  const float* data = nullptr;
  int64_t count = 0;
  int64_t width = 0;
  int64_t stride = 0;

  ConstRows() = default;
  ConstRows(const float* data, int64_t count, int64_t width) : ConstRows(data, count, width, width) {}
  ConstRows(const float* data, int64_t count, int64_t width, int64_t stride)
      : data(data), count(count), width(width), stride(stride) {}
  ConstRows(const Rows& rows)  // NOLINT: implicit by design
      : data(rows.data), count(rows.count), width(rows.width), stride(rows.stride) {}
  const float* row(int64_t r) const { return data + r * stride; }
  ConstRows columns(int64_t begin, int64_t n) const { return {data + begin, count, n, stride}; }
  ConstRows slice(int64_t begin, int64_t n) const { return {data + begin * stride, n, width, stride}; }
};

// The pages of ONE layer. K and V are separate arrays of [page][kv_head], and what one head has in a page is one
// contiguous run, which attention streams through and a head-sharded copy can move whole:
//   values [slot][head_dim] of `dtype`, then, for kI8 alone, scales [slot] of f32.
// Nothing lies outside a page, so its page_bytes() are all that an export or a copy has to move.
//
// What kv_store leaves there is a function of that token's own K or V row alone, and the same in every implementation:
//   kF32          the value itself.
//   kF16, kBF16   rounded to nearest, ties to even. A NaN stays one; beyond the range (65520 in f16) it is infinite.
//   kI8           one scale per token and kv head, for K and for V: scale = f32(max |x| / 127), value = x / scale,
//                 rounded to nearest, ties to even, in [-127, 127]; it stands for value * scale. A row whose scale
//                 would be less than 2^-126 (all zeros, most likely) has scale 0 and values 0. A row with a NaN or an
//                 infinity has scale NaN and values 0: what is wrong with one element shows in all of its row.
// Attention reads what is stored, its own rows of this step included: rows that were prefilled together see the rounded
// keys and values of each other, as they would in another cut.
struct KvLayer {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF32;
  int64_t page_count = 0;
  int64_t page_size = 0;  // slots (token positions) per page
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  // From the begin of a page to that of the next: page_bytes() where a layer's pages are dense, more where a page holds
  // all layers. K, V and the stride may have any alignment.
  int64_t page_stride_bytes = 0;

  int64_t row_bytes() const { return head_dim * static_cast<int64_t>(dtype_size(dtype)); }  // values of one slot
  int64_t scale_bytes() const { return dtype == DType::kI8 ? 4 : 0; }                       // of one slot
  int64_t head_bytes() const { return page_size * (row_bytes() + scale_bytes()); }
  int64_t page_bytes() const { return kv_heads * head_bytes(); }
};

// kF32, kF16, kBF16, kI8.
constexpr bool is_kv_dtype(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kI8;
}

// One sequence's rows in a ragged batch: rows [row_begin, row_begin + row_count) of q, k, v are its positions
// kv_length_before, kv_length_before + 1, ... Position p lives in page pages[p / page_size], slot p % page_size;
// `pages` reaches at least to the last of these positions. Decode is row_count 1.
struct AttentionSequence {
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t kv_length_before = 0;
  std::span<const int32_t> pages;
};

struct AttentionParams {
  int64_t heads = 0;   // query heads; a multiple of kv_heads. Query head h reads kv head h / (heads / kv_heads)
  float scale = 1.0f;  // usually 1 / sqrt(head_dim)
  int64_t window = 0;  // 0: all earlier positions. w > 0: position p sees p - w + 1 .. p (Mistral)
  // false: each row sees all kv_length_before + row_count positions of its sequence (an encoder's); window is 0.
  bool causal = true;
};

struct LinearOptions {
  TensorView bias;          // [N] of any weight dtype, or data == nullptr for none
  bool accumulate = false;  // y += instead of y =: the residual add at no extra pass
};

// What products multiply: rows as they are, or made of others on the way, row by row, so that what is made is used
// while it is in the nearest cache and no pass over all rows stands before the products. The bits are those of rms_norm
// or swiglu and then the products.
struct Input {
  ConstRows x;
  TensorView norm;    // of rms_norm(x), or data == nullptr
  float epsilon = 0;  // of it
  ConstRows up;       // of swiglu with x as the gate, or data == nullptr

  Input(const ConstRows& x) : x(x) {}  // NOLINT: implicit by design
  Input(const Rows& x) : x(x) {}       // NOLINT: implicit by design
  bool as_it_is() const { return norm.data == nullptr && up.data == nullptr; }
};
inline Input normalized(const ConstRows& x, const TensorView& weight, float epsilon) {
  Input input(x);
  input.norm = weight;
  input.epsilon = epsilon;
  return input;
}
inline Input gated(const ConstRows& gate, const ConstRows& up) {
  Input input(gate);
  input.up = up;
  return input;
}

// One of several products of the same input x: y[M, N] = x[M, K] weight[N, K]^T (+ bias) (+ y).
struct Product {
  const Weight* weight = nullptr;  // outlives the call
  Rows y;
  LinearOptions options;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // One of isa_name(kAllIsas).
  virtual std::string_view name() const = 0;

  // All products with the same input, at one go: it is prepared once, and the threads divide all of the weights between
  // them instead of meeting after each. The bits are those of one call for each. Nothing of the input, and no other y,
  // overlaps a y. Rows of the input may overlap each other (stride < width), as the windows of a convolution do.
  virtual void products(const Input& x, std::span<const Product> products) = 0;

  // One product. x and y must not overlap.
  void linear(const Input& x, const Weight& weight, Rows y, const LinearOptions& options = {}) {
    const Product one{&weight, y, options};
    products(x, {&one, 1});
  }
  void linear(const Input& x, std::initializer_list<Product> several) {
    products(x, {several.begin(), several.size()});
  }

  // y[i] = table[ids[i]], table [vocabulary, width] of any weight dtype. Every id is in range (CHECK).
  virtual void embedding(const Weight& table, std::span<const int32_t> ids, Rows y) = 0;

  // y = x / sqrt(mean(x^2) + epsilon) * weight. The width of a row is a multiple of weight's size D and each group of
  // D elements is normalized alone: D = hidden size for a layer's norm, D = head_dim for Qwen3's q_norm and k_norm.
  // y may be x.
  virtual void rms_norm(ConstRows x, const TensorView& weight, float epsilon, Rows y) = 0;

  // y += x.
  virtual void add(ConstRows x, Rows y) = 0;

  // y += scale * x, scale [width] of any weight dtype: a residual with a learnt weight for each channel (Touvron et
  // al., "Going deeper with Image Transformers", 2021).
  virtual void add_scaled(ConstRows x, const TensorView& scale, Rows y) = 0;

  // y = silu(gate) * up, silu(g) = g / (1 + exp(-g)). y may be gate or up.
  virtual void swiglu(ConstRows gate, ConstRows up, Rows y) = 0;

  // y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over the width of each row; weight and bias [width]
  // of any weight dtype. y may be x.
  virtual void layer_norm(ConstRows x, const TensorView& weight, const TensorView& bias, float epsilon, Rows y) = 0;

  // y = x * Phi(x), the Gaussian error linear unit (Hendrycks and Gimpel, 2016): by erf, or by their approximation with
  // tanh. y may be x.
  virtual void gelu(ConstRows x, bool tanh, Rows y) = 0;

  // y = x + magnitude * sin(frequency * x)^2, both [width] of any weight dtype: an activation for periodic signals
  // (Ziyin et al., "Neural Networks Fail to Learn Periodic Functions and How to Fix It", 2020). y may be x. Beyond
  // kMaxSnakeAngle the sine is that of the bound (ref: the exact one), where an f32 angle has lost its fraction.
  virtual void snake(ConstRows x, const TensorView& frequency, const TensorView& magnitude, Rows y) = 0;

  // y[t][c] = bias[c] + the sum over k < K of weight[k][c] * x[t + k][c]: each channel is convolved by itself, in time.
  // weight [K, width], bias [width], of any weight dtype; x has K - 1 rows more than y and does not overlap it.
  virtual void depthwise(ConstRows x, const TensorView& weight, const TensorView& bias, Rows y) = 0;

  // The rotation of each row: cos[r][i] = cos(a) * scaling, sin[r][i] = sin(a) * scaling, a = f32(positions[r]) *
  // inv_freq[i] rounded to f32, as Hugging Face does. Made once per step and used by every layer. `scaling` is
  // the attention factor of YaRN-like variants, else 1. Other position schemes (three axes) only need another table.
  virtual void rope_table(std::span<const int32_t> positions, std::span<const float> inv_freq, float scaling, Rows cos,
                          Rows sin) = 0;

  // Rotates every head of x [rows, heads * head_dim] in place, half-split ("neox") as in Hugging Face Llama: with
  // R = 2 * cos.width <= head_dim, the pairs are (i, i + R/2); elements past R stay as they are.
  virtual void rope(Rows x, int64_t head_dim, ConstRows cos, ConstRows sin) = 0;

  // Writes rows of k and v [rows, kv_heads * head_dim] into the pages of their sequences, in kv.dtype. Call before
  // attention.
  virtual void kv_store(const KvLayer& kv, std::span<const AttentionSequence> sequences, ConstRows k, ConstRows v) = 0;

  // Attention of q [rows, heads * head_dim] over the pages; out has q's shape. Sequences' rows are disjoint. Where it
  // is not causal, a row has the bits of a causal one behind all other positions of its sequence. head_dim is even and
  // at most kMaxHeadDim. Rows of no sequence are not written.
  virtual void attention(ConstRows q, const KvLayer& kv, std::span<const AttentionSequence> sequences,
                         const AttentionParams& params, Rows out) = 0;
};

enum class Isa : uint8_t { kRef, kGeneric, kAvx2, kAvx512, kAmx };

// In ascending order of preference.
inline constexpr Isa kAllIsas[] = {Isa::kRef, Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

std::string_view isa_name(Isa isa);

// What products with plain bf16 weights take for x; others (f32, f16, quantized weights) do not differ. kBF16 rounds x
// to nearest, ties to even, which halves the work on processors with products of bf16 and takes a third of it on AMX.
enum class Activations : uint8_t { kF32, kBF16 };

std::string_view activations_name(Activations activations);  // "f32", "bf16"
Result<Activations> activations_from_name(std::string_view name);

// What two processes must have in common for the same bits, for messages and comparisons: "avx512", "avx512 with bf16
// activations".
std::string arithmetic_name(Isa isa, Activations activations);

// True where this build and this processor can run it.
bool isa_available(Isa isa);

// The ISA to use: MILLRACE_ISA (a name of kAllIsas) where it is set and not empty, else the best available one.
// kInvalidArgument for another word; kUnsupported where the processor lacks it.
Result<Isa> resolve_isa();

// `pool` must outlive the Ops. `isa` must be available (CHECK).
std::unique_ptr<Ops> make_ops(Isa isa, ThreadPool& pool, Activations activations = Activations::kF32);

// make_ops(resolve_isa()).
Result<std::unique_ptr<Ops>> make_ops(ThreadPool& pool);

}  // namespace millrace::kernels
