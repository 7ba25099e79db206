// TalkerProjection: what brings rows of Qwen3-Omni's thinker to the width of the talker: fc2(silu(fc1(x))), one for
// embeddings of text and one for hidden rows of media.
//
// Owner: the talker. Thread safety: immutable; project() from several threads, each with its own Ops.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "formats/talker_config.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/weight_reader.h"

namespace millrace {

class TalkerProjection {
 public:
  enum class Kind : uint8_t { kText, kMedia };

  // Reads "talker.text_projection.*" or "talker.hidden_projection.*" alone. Errors: those of WeightStore::get.
  static Result<std::shared_ptr<const TalkerProjection>> load(Kind kind, const TalkerConfig& config,
                                                              std::shared_ptr<WeightStore> store,
                                                              const LoadOptions& options);

  // rows [count, the talker's hidden size] of x [count, thinker_hidden_size].
  void project(kernels::ConstRows x, kernels::Ops& ops, kernels::Rows rows) const;

 private:
  TalkerProjection(std::shared_ptr<const WeightTable> weights, Linear fc1, Linear fc2)
      : weights_(std::move(weights)), fc1_(std::move(fc1)), fc2_(std::move(fc2)) {}

  const std::shared_ptr<const WeightTable> weights_;  // keeps the bytes alive
  const Linear fc1_, fc2_;
};

}  // namespace millrace
