// TalkerRows: the RowSource of Qwen3-Omni's talker (models/omni/). A row is the projected embedding of a text and the
// embeddings of a frame's codes; of each drawn first code, the code predictor makes the others at once.
//
//   row = embedding of code 0 + embeddings of the other codes, in their sequence, + projection(embedding of the text)
//   row of a picture or an audio = projection(hidden row of the thinker)
//
// Owner: the runner of the talker. Thread safety: its compute thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/talker_config.h"
#include "models/omni/code_predictor.h"
#include "models/omni/talker_projection.h"
#include "runner/row_source.h"
#include "runner/sampler.h"
#include "stages/speech/talker_sequence.h"

namespace millrace {

// What of a folder's weights is beside the talker's language model.
struct TalkerParts {
  std::shared_ptr<const CodePredictor> predictor;
  std::shared_ptr<const TalkerProjection> text, media;
  kernels::Weight thinker_embedding;          // [vocabulary, thinker_hidden_size]
  std::shared_ptr<const void> keeps_weights;  // behind the embedding
};

class TalkerRows : public RowSource {
 public:
  TalkerRows(const TalkerConfig& config, TalkerParts parts);

  // Every RowState is a TalkerSequence.
  void fill(std::span<const SourceRow> rows, kernels::Rows hidden, const Model& model, kernels::Ops& ops) override;
  void taken(std::span<DrawnToken> tokens, const Model& model, kernels::Ops& ops) override;

 private:
  void fill_tile(std::span<const SourceRow> rows, kernels::Rows hidden, const Model& model, kernels::Ops& ops);
  void add_codes(std::span<const SourceRow> rows, kernels::Rows hidden, const Model& model, kernels::Ops& ops);
  void add_media(std::span<const SourceRow> rows, kernels::Rows hidden, kernels::Ops& ops);
  void add_text(std::span<const SourceRow> rows, kernels::Rows hidden, kernels::Ops& ops);
  void complete(std::span<DrawnToken* const> tokens, const Model& model, kernels::Ops& ops);
  Result<int32_t> choose(std::span<const float> logits, const DrawnToken& token, int group);

  const TalkerConfig config_;
  const TalkerParts parts_;
  CodePredictor::Scratch scratch_;
  Sampler sampler_;
  Buffer rows_, more_, thinker_rows_;  // of a tile
  std::vector<SpokenRow> spoken_;      // of the tile in hand, as the next two
  std::vector<int32_t> rest_;          // codes of its frames, but for the first of each
  std::vector<bool> is_frame_;
};

}  // namespace millrace
