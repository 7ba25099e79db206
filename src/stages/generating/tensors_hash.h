// A hash of a model's tensors that is quick to make: names, types, shapes and samples of the bytes. It finds mistakes
// (another model, other weights of the same shape) before anything is loaded.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kSampleBytes = 64;  // of each tensor, at its beginning, middle and end

// Of a shard, what its manifest has of the model that was split: shards of one model and the complete one have one
// hash. Never 0. `model`: a directory or a GGUF file. kNotFound: it has no weights; the other errors are those of
// opening it.
Result<uint64_t> tensors_hash(const std::string& model);

}  // namespace millrace
