// Weight: a matrix [rows, columns] of weights in the form in which an implementation of Ops reads it.
//
// Plain weights are read where they lie (f32, f16, bf16 of a mapped file, at any address). pack_weight() makes a form
// that suits an implementation better, once, when a model is loaded: quantized blocks are always packed for the CPU
// implementations (kernels/cpu/packed.h says how), the others where that pays. A packed Weight owns its bytes and needs
// the source no more.
//
// A Weight made for one Isa is given to an Ops of that Isa (CHECK); a plain one of f32, f16 or bf16 to any. Packing
// never changes what a weight stands for: the oracle `ref` reads the blocks of the file themselves.
//
// Thread safety: values; the bytes are immutable once packed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

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
  std::shared_ptr<const Buffer> packed;  // what the weight owns: null for a plain one over somebody else's bytes

  Weight() = default;
  Weight(const TensorView& plain) : view(plain) {}  // NOLINT: implicit by design, most weights are plain

  bool empty() const { return view.data == nullptr && packed == nullptr; }
  DType dtype() const { return view.dtype; }
  int64_t rows() const { return view.shape[0]; }
  int64_t columns() const { return view.shape[1]; }
  // Bytes that a pass over all of it reads.
  std::size_t size_bytes() const { return layout == WeightLayout::kPanels ? packed->size_bytes() : view.size_bytes(); }
};

// `source` [rows, columns] as Ops of `isa` read it fastest; a plain Weight over the same bytes where nothing is to be
// gained. `quantize`: to blocks of this type on the way (kQ8_0 or kQ4_0, of floats), without a second copy of the
// matrix but for `ref`. kUnsupported for a dtype that the implementation does not multiply; kInvalidArgument for a
// quantized row that is not a whole number of blocks.
Result<Weight> pack_weight(Isa isa, const TensorView& source, ThreadPool& pool, std::optional<DType> quantize = {});

}  // namespace millrace::kernels
