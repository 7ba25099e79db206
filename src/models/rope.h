// The inverse frequencies of rotary position embeddings (Su et al., "RoFormer", 2021) and their published scalings,
// in the float32 steps that transformers takes, so that angles at far positions agree. Thread safety: free function.
#pragma once

#include <vector>

#include "formats/model_config.h"

namespace millrace {

// head_dim / 2 values: theta^(-2i / head_dim), scaled by rope.type:
//   linear   divided by factor (positions are interpolated)
//   llama3   long waves divided by factor, short ones kept, those between blended (Llama 3.1)
std::vector<float> rope_inverse_frequencies(const RopeConfig& rope, int head_dim);

}  // namespace millrace
