// CodePredictor: the small model beside Qwen3-Omni's talker that completes a frame: from the talker's last hidden row
// and its code, the other codes of the frame, one after the other.
//
//   rows 0 and 1: the hidden row (after the talker's final norm), the embedding of code 0
//   for g = 0, 1, ...:  logits = head[g](rms_norm(layers(rows)));  code g + 1 is chosen from them;
//                       its embedding[g] is the next row
//
// The talker's next row begins with the sum of the embeddings of all codes of the frame (add_embeddings).
//
// Dense Qwen3 layers with one rotary axis and a fresh context of as many rows as a frame has codes. Frames of several
// requests are computed together; each has the bits that it would have alone.
//
// Owner: the talker. Thread safety: immutable; predict() from several threads, each with its own Ops and Scratch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "formats/talker_config.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/model.h"
#include "models/qwen3_layer.h"

namespace millrace {

class CodePredictor {
 public:
  // Reads the tensors "talker.code_predictor.*" and no others. Errors: those of WeightStore::get; kInvalidArgument
  // where the store has some of them that the predictor does not use; kUnsupported for a head_dim over
  // kernels::kMaxHeadDim.
  static Result<std::shared_ptr<const CodePredictor>> load(const TalkerConfig& config,
                                                           std::shared_ptr<WeightStore> store,
                                                           const LoadOptions& options);

  int code_groups() const { return groups_; }
  int codebook_size() const { return config_.vocab_size; }
  int hidden_size() const { return config_.hidden_size; }

  // The activations and the context of up to `max_frames` frames. One thread at a time.
  class Scratch {
   public:
    Scratch(const CodePredictor& predictor, int64_t max_frames);

   private:
    friend class CodePredictor;
    int64_t max_frames_;
    Workspace workspace_;
    std::vector<kernels::KvLayer> layers_;
    std::vector<int32_t> pages_;  // one for each frame
    Buffer cache_, x_, rows_, logits_;
  };

  // Chooses codes[r] from logits [frames, codebook_size] of the codes `group`, 1 to code_groups() - 1.
  using Choose = FunctionRef<void(int group, kernels::ConstRows logits, std::span<int32_t> codes)>;

  // hidden, first [frames, hidden_size], frames <= the scratch's; `first`: the talker's embedding of code 0. codes
  // [frames, code_groups() - 1] get what `choose` chose, each in [0, codebook_size) (CHECK).
  void predict(kernels::ConstRows hidden, kernels::ConstRows first, Scratch& scratch, kernels::Ops& ops, Choose choose,
               std::span<int32_t> codes) const;

  // rows [frames, hidden_size] += the embeddings of `codes` [frames, code_groups() - 1], in their sequence; as many
  // frames as there are. Each in [0, codebook_size).
  void add_embeddings(std::span<const int32_t> codes, Scratch& scratch, kernels::Ops& ops, kernels::Rows rows) const;

 private:
  CodePredictor(const TalkerConfig& config, std::shared_ptr<const WeightTable> weights, WeightReader& reader);
  // Takes x, `rows_each` rows of every frame that stand at `position` and after, through the layers.
  void forward(kernels::Rows x, int64_t rows_each, int32_t position, Scratch& scratch, kernels::Ops& ops) const;

  const ModelConfig config_;
  const int groups_;
  const std::shared_ptr<const WeightTable> weights_;  // keeps the bytes alive
  const std::vector<float> inverse_frequencies_;
  std::vector<Qwen3Layer> layers_;
  TensorView norm_;
  std::vector<kernels::Weight> embeddings_, heads_;  // [codebook_size, hidden_size] of each group but the first
};

}  // namespace millrace
