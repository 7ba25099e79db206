// Experts that a Hugging Face folder stacks (Qwen3-VL-MoE): one tensor holds one matrix of all experts of a layer, gate
// and up joined. Two layouts are in use, E experts, H the hidden size, I the inner size of an expert:
//
//                              published files    files that transformers 5 saves
//   mlp.experts.gate_up_proj   [E, H, 2 I]        [E, 2 I, H]
//   mlp.experts.down_proj      [E, I, H]          [E, H, I]
//
// In the left one each matrix is transposed. unstack_experts() replaces each stacked entry by one for each expert and
// matrix, named and shaped as in files that store experts apart: mlp.experts.3.gate_proj.weight is [I, H].
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/safetensors.h"

namespace millrace {

// Replaces the stacked entries of all headers of a model, whose shards may hold the two tensors of a layer apart. H is
// the width of the layer's router (mlp.gate.weight). The shape decides the layout: of gate_up_proj unless H = 2 I, of
// down_proj unless H = I. Returns whether there was a stacked entry. Errors: kInvalidArgument names the tensor, the
// shape seen and the shapes wanted: a layer that lacks one of the three, shapes that do not fit together, two tensors
// of one layer in different layouts.
Result<bool> unstack_experts(const std::vector<SafetensorsHeader*>& headers);

// Whether it is the plain name of a stacked tensor.
bool is_stacked_experts(std::string_view name);

struct ExpertSizes {
  int64_t experts = 0, hidden = 0, inner = 0;
};

// The same of one stacked entry alone, whose model's sizes are known. kInvalidArgument: another shape; kUnsupported: a
// shape that both layouts have.
Result<std::vector<SafetensorsEntry>> unstack_entry(const SafetensorsEntry& stacked, const ExpertSizes& sizes);

// The elements of `entry`, stored transposed, row by row; `data` is where the header's data begins. `to` has as many
// bytes as the entry's shape needs.
void copy_transposed(const std::byte* data, const SafetensorsEntry& entry, std::byte* to);

}  // namespace millrace
