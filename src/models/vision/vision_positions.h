// Where the patches of a picture stand: the learned embedding of a square, interpolated to the grid, and the row and
// column that the rotation turns by. Patches in the processor's sequence (models/vision/vision_tower.h).
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace millrace {

// Row and column of each patch of a frame.
std::vector<std::array<int32_t, 2>> patch_positions(int32_t height, int32_t width, int32_t merge_size);

// Adds to x [height * width, width of an embedding] the embeddings of `table` [edge^2, width of an embedding],
// interpolated bilinearly as in transformers 5.12: the edge is spread over the grid by torch.linspace, all in f32.
// (Versions before rounded the four weights to the embedding's type.)
void add_interpolated_positions(std::span<const float> table, int32_t edge, int32_t height, int32_t width,
                                std::span<const std::array<int32_t, 2>> positions, kernels::Rows x);

}  // namespace millrace
