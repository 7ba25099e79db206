// Weight: a matrix [rows, columns] of weights in the form in which an implementation of Ops reads it.
//
// Plain weights are read where they lie (f32, f16, bf16 of a mapped file, at any address). pack_weight() makes a form
// that suits an implementation better, once, when a model is loaded: quantized blocks are always packed for the CPU
// implementations (layout: kernels/cpu/packed.h), the others where that pays. A packed Weight owns its bytes and needs
// the source no more.
//
// A Weight made for one Isa is given to an Ops of that Isa (CHECK); a plain one of f32, f16 or bf16 to any. Packing
// never changes what a weight stands for: the oracle `ref` reads the blocks of the file themselves.
//
// Thread safety: values; the bytes are immutable once packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/function_ref.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace millrace::kernels {

enum class Isa : uint8_t;

enum class WeightLayout : uint8_t {
  kPlain,   // row-major, as a file holds it
  kTiles,   // f32, f16 and bf16, interleaved in panels of rows: kernels/cpu/tiles.h
  kPanels,  // quantized blocks, interleaved in panels of rows: kernels/cpu/packed.h
};

struct Weight {
  TensorView view;  // shape and dtype of the source; data of a plain weight, null for a packed one
  WeightLayout layout = WeightLayout::kPlain;
  std::shared_ptr<const Buffer> packed;  // what the weight owns: null for a plain one over another owner's bytes

  Weight() = default;
  Weight(const TensorView& plain) : view(plain) {}  // NOLINT: implicit by design, most weights are plain

  bool empty() const { return view.data == nullptr && packed == nullptr; }
  DType dtype() const { return view.dtype; }
  int64_t rows() const { return view.shape[0]; }
  int64_t columns() const { return view.shape[1]; }
  // Bytes that a pass over all of it reads.
  std::size_t size_bytes() const { return layout == WeightLayout::kPanels ? packed->size_bytes() : view.size_bytes(); }
};

// Called between two parts of a matrix, from the thread that packs it: the first `rows` rows of the source are needed
// no more. The owner of a mapped file then releases their pages, so that a load never holds all of a matrix twice.
using RowsDone = std::function<void(int64_t rows)>;
inline constexpr int64_t kPackStepBytes = 32 << 20;  // of the source, between two calls

// `source` [rows, columns] as Ops of `isa` read it fastest; a plain Weight over the same bytes where nothing is to be
// gained. `quantize`: to blocks of this type on the way (kQ8_0 or kQ4_0, of floats), without a second copy of the
// matrix but for `ref`. kUnsupported for a dtype that the implementation does not multiply; kInvalidArgument for a
// quantized row that is not a whole number of blocks.
Result<Weight> pack_weight(Isa isa, const TensorView& source, ThreadPool& pool, std::optional<DType> quantize = {},
                           const RowsDone& rows_done = {});

// The bytes of a packed weight in its layout, the same for the same source on every run; empty for a plain one.
std::span<const std::byte> packed_bytes(const Weight& weight);

// The weight that pack_weight made for `isa` (kRef packs nothing: CHECK), from its bytes: `fill` writes all of them
// into memory of its own, huge pages where it is large. Errors: those of `fill`; kInvalidArgument as pack_weight.
Result<Weight> restore_weight(Isa isa, DType dtype, const Shape& shape,
                              FunctionRef<Status(std::span<std::byte> bytes)> fill);

}  // namespace millrace::kernels
