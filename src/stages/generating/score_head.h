// The head of a model that gives a text one score: a row of the size of a hidden row.
//
// Thread safety: free function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace {

// score.weight of a model directory, [1, hidden_size]. The errors of WeightStore::open() and get().
Result<std::vector<float>> read_score_head(const std::string& model_dir, int64_t hidden_size);

}  // namespace millrace
