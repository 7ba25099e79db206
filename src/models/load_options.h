// How the weights of a model are brought into memory. Thread safety: values.
#pragma once

#include <optional>

#include "base/thread_pool.h"
#include "formats/mapped_file.h"
#include "kernels/weight.h"
#include "tensor/dtype.h"

namespace millrace {

class PackedCache;

struct LoadOptions {
  // Works while the matrices are quantized and packed for `isa`. Null: all stay as the file holds them, which suits any
  // Ops, but a file of quantized weights is refused.
  ThreadPool* pool = nullptr;
  kernels::Isa isa{};
  // kQ8_0 or kQ4_0: f32, f16 and bf16 matrices become these; of kQ4_0, embedding and head become kQ8_0, whose errors
  // every token would meet. Matrices whose rows are not whole blocks stay as they are.
  std::optional<DType> quantize;
  // Where packed matrices are looked for first; null: nowhere, as with kRef, which packs nothing.
  // Made with these options, it outlives the load.
  PackedCache* packed_cache = nullptr;
  ProgressFn progress;  // over the bytes of the file, where matrices are packed
};

}  // namespace millrace
