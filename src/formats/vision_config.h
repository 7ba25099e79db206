// The vision tower of a vision-language model, as config.json describes it: Qwen3-VL's and
// Qwen3-Omni's (vision_config beside text_config). Range-checked like everything in formats/model_config.h; defaults
// are those of transformers 5.12's Qwen3VLVisionConfig.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

inline constexpr int kMaxVisionDepth = 256;
inline constexpr int kMaxPatchEdge = 64;  // pixels
inline constexpr int kMaxMergeEdge = 8;   // patches

enum class VisionActivation : uint8_t { kGeluTanh, kGelu };

// How the tensors of the mergers are named: norm, linear_fc1, linear_fc2 and deepstack_merger_list; or ln_q, mlp.0,
// mlp.2 and merger_list.
enum class MergerNames : uint8_t { kQwen3Vl, kQwen3Omni };

struct VisionConfig {
  int depth = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int heads = 0;  // divides hidden_size
  int channels = 3;
  int patch_size = 0;           // pixels
  int temporal_patch_size = 0;  // frames
  int merge_size = 0;           // merge_size^2 patches become one row
  int out_hidden_size = 0;      // of the language model
  int position_edge = 0;        // the learned positions are a square of so many
  std::vector<int> deepstack;   // layers behind which a merger makes one more set of features, ascending
  VisionActivation activation = VisionActivation::kGeluTanh;
  MergerNames merger_names = MergerNames::kQwen3Vl;
  bool kernels_by_frame = false;  // the patch embedding is stored as a kernel for each frame (formats/gguf_vision.h)

  // Ids of the vocabulary.
  int32_t image_token_id = 0;
  int32_t video_token_id = 0;
  int32_t vision_start_token_id = 0;
  int32_t vision_end_token_id = 0;

  int head_dim() const { return hidden_size / heads; }
  int patch_values() const { return channels * temporal_patch_size * patch_size * patch_size; }
  int merged_patches() const { return merge_size * merge_size; }
  int feature_sets() const { return 1 + static_cast<int>(deepstack.size()); }

  friend bool operator==(const VisionConfig&, const VisionConfig&) = default;
};

// From the object that holds text_config and vision_config. `hidden_size` and `vocab_size`: of the language model.
Result<VisionConfig> parse_vision_config(const Json& root, int hidden_size, int vocab_size);

}  // namespace millrace
