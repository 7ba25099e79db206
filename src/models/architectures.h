// The table of architectures: one maker for each file of this folder that reads like a paper. model.cc picks by the
// config's architecture. Thread safety: free functions.
#pragma once

#include <memory>

#include "models/model.h"
#include "models/weight_reader.h"

namespace millrace {

// Each takes every tensor that its architecture has from `reader`, whose status the caller checks afterwards.
std::shared_ptr<const Model> make_llama(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader);
std::shared_ptr<const Model> make_qwen2(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader);
std::shared_ptr<const Model> make_qwen3(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader);
std::shared_ptr<const Model> make_qwen3_moe(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                            std::shared_ptr<const WeightTable> weights, WeightReader& reader);

}  // namespace millrace
