// VisionTower: the vision transformer of Qwen3-VL (Bai et al., "Qwen3-VL Technical Report", 2025) and Qwen3-Omni, which
// names the mergers otherwise: patches of one picture in, rows of the language model's width out.
//
//   x = patch_embed(patches) + positions interpolated to the grid
//   for every block:
//     q, k, v = qkv(layer_norm(x));  q, k turned by row and by column
//     x += proj(attention(q, k, v))          each patch sees all patches of its frame
//     x += fc2(gelu(fc1(layer_norm(x))))
//     behind some blocks (deepstack): one more set of features, merger_i(x)
//   features = merger(x)                     merge_size^2 neighbours become one row
//
// Patches come in the sequence of the processor: the merge_size^2 neighbours that become a row stand together
// (media/patches.h). The features of a picture depend on its patches alone: every op keeps rows apart (kernels/ops.h).
//
// Owner: the encoder. Thread safety: immutable; encode() from several threads, each with its own Ops.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "formats/vision_config.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/weight_reader.h"

namespace millrace {

inline constexpr int64_t kVisionTileRows = 512;  // of a product at one go; keep_going is asked between tiles

// In patches: frames (of temporal_patch_size pictures each), rows, columns. Height and width are multiples of
// merge_size.
struct VisionGrid {
  int32_t frames = 0;
  int32_t height = 0;
  int32_t width = 0;

  int64_t patches() const { return int64_t{frames} * height * width; }
};

class VisionTower {
 public:
  // Reads the tensors "visual.*" and no others. Errors: those of WeightStore::get; kInvalidArgument where the store has
  // some of them that the tower does not use.
  static Result<std::shared_ptr<const VisionTower>> load(const VisionConfig& config, std::shared_ptr<WeightStore> store,
                                                         const LoadOptions& options);

  const VisionConfig& config() const { return config_; }
  const WeightTable& weights() const { return *weights_; }

  // `patches` [grid.patches(), config().patch_values()]. `features` becomes [config().feature_sets(), rows,
  // config().out_hidden_size], rows = grid.patches() / merge_size^2: the merger's, then those of the deepstack.
  // kCancelled where `keep_going` returned false.
  Status encode(VisionGrid grid, kernels::ConstRows patches, kernels::Ops& ops, FunctionRef<bool()> keep_going,
                std::vector<float>& features) const;

 private:
  struct Norm {
    TensorView weight, bias;
  };
  struct Block {
    Norm norm1, norm2;
    Linear qkv, proj, fc1, fc2;
  };
  struct Merger {
    Norm norm;
    Linear fc1, fc2;
    bool norm_before = true;  // it is joined: over the patches' width, not over that of the joined ones
  };
  class Run;

  VisionTower(const VisionConfig& config, std::shared_ptr<const WeightTable> weights, WeightReader& reader);
  TensorView read_kernels(WeightReader& reader);
  Norm read_norm(WeightReader& reader, const std::string& name, int64_t width) const;
  Block read_block(WeightReader& reader, int index) const;
  Merger read_merger(WeightReader& reader, const std::string& name, bool norm_before) const;

  const VisionConfig config_;
  const std::shared_ptr<const WeightTable> weights_;  // keeps the bytes alive
  std::vector<float> kernels_;                        // of patch_embed_, where they are stored frame by frame
  Linear patch_embed_;
  std::vector<float> positions_;  // [position_edge^2, hidden_size]
  std::vector<Block> blocks_;
  Merger merger_;
  std::vector<Merger> deepstack_;
};

}  // namespace millrace
