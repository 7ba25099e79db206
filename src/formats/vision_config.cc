#include "formats/vision_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/config_fields.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"

namespace millrace {
namespace {

using namespace config_fields;

Status read_sizes(const Json& root, VisionConfig& out) {
  RETURN_IF_ERROR(read_int(root, "depth", 27, 1, kMaxVisionDepth, out.depth));
  RETURN_IF_ERROR(read_int(root, "hidden_size", 1152, 1, kMaxHiddenSize, out.hidden_size));
  RETURN_IF_ERROR(read_int(root, "intermediate_size", 4304, 1, kMaxIntermediateSize, out.intermediate_size));
  RETURN_IF_ERROR(read_int(root, "num_heads", 16, 1, kMaxHeads, out.heads));
  if (out.hidden_size % (4 * out.heads) != 0) {  // the rotation turns pairs by row and by column
    return invalid_argument("hidden_size is {}; wanted a multiple of 4 times num_heads, which is {}", out.hidden_size,
                            out.heads);
  }
  RETURN_IF_ERROR(read_int(root, "in_channels", 3, 3, 3, out.channels));
  RETURN_IF_ERROR(read_int(root, "patch_size", 16, 1, kMaxPatchEdge, out.patch_size));
  RETURN_IF_ERROR(read_int(root, "temporal_patch_size", 2, 1, 16, out.temporal_patch_size));
  RETURN_IF_ERROR(read_int(root, "spatial_merge_size", 2, 1, kMaxMergeEdge, out.merge_size));
  return read_int(root, "out_hidden_size", 3584, 1, kMaxHiddenSize, out.out_hidden_size);
}

Status read_positions(const Json& root, VisionConfig& out) {
  int count = 0;
  RETURN_IF_ERROR(read_int(root, "num_position_embeddings", 2304, 1, 1 << 20, count));
  out.position_edge = static_cast<int>(std::lround(std::sqrt(count)));
  if (out.position_edge * out.position_edge == count) return ok_status();
  return invalid_argument("num_position_embeddings is {}; wanted a square", count);
}

Status read_deepstack(const Json& root, VisionConfig& out) {
  const Json* list = json_find(root, "deepstack_visual_indexes");
  const Json fallback = Json::array({8, 16, 24});
  if (list == nullptr) list = &fallback;
  if (!list->is_array()) {
    return invalid_argument("deepstack_visual_indexes is of type {}; wanted a list", json_type_name(*list));
  }
  for (const Json& item : *list) {
    const int after = out.deepstack.empty() ? -1 : out.deepstack.back();
    if (!item.is_number_integer() || item <= after || item >= out.depth) {
      return invalid_argument("deepstack_visual_indexes holds {}; wanted ascending layers from 0 to {}",
                              item.is_number_integer() ? item.dump() : json_type_name(item), out.depth - 1);
    }
    out.deepstack.push_back(item.get<int>());
  }
  return ok_status();
}

Status read_activation(const Json& root, VisionConfig& out) {
  std::string name = "gelu_pytorch_tanh";
  RETURN_IF_ERROR(json_read(root, "hidden_act", name));
  if (name != "gelu_pytorch_tanh" && name != "gelu") {
    return error(StatusCode::kUnsupported, "hidden_act is {}; wanted gelu_pytorch_tanh or gelu", quoted_name(name));
  }
  out.activation = name == "gelu" ? VisionActivation::kGelu : VisionActivation::kGeluTanh;
  return ok_status();
}

Status read_tower(const Json& root, VisionConfig& out) {
  RETURN_IF_ERROR(read_sizes(root, out));
  RETURN_IF_ERROR(read_positions(root, out));
  RETURN_IF_ERROR(read_deepstack(root, out));
  return read_activation(root, out);
}

}  // namespace

Result<VisionConfig> parse_vision_config(const Json& root, int hidden_size, int vocab_size) {
  VisionConfig out;
  const Json* tower = json_find(root, "vision_config");
  if (tower == nullptr || !tower->is_object()) {
    return invalid_argument("vision_config is {}; wanted an object",
                            tower == nullptr ? "missing" : json_type_name(*tower));
  }
  RETURN_IF_ERROR(read_tower(*tower, out).with_prefix("vision_config"));
  if (out.out_hidden_size != hidden_size) {
    return invalid_argument("vision_config: out_hidden_size is {}; wanted the language model's hidden_size, {}",
                            out.out_hidden_size, hidden_size);
  }
  const std::pair<std::string_view, std::pair<int64_t, int32_t*>> ids[] = {
      {"image_token_id", {151655, &out.image_token_id}},
      {"video_token_id", {151656, &out.video_token_id}},
      {"vision_start_token_id", {151652, &out.vision_start_token_id}},
      {"vision_end_token_id", {151653, &out.vision_end_token_id}}};
  for (const auto& [key, field] : ids) {
    RETURN_IF_ERROR(read_int(root, key, field.first, 0, vocab_size - 1, *field.second));
  }
  return out;
}

}  // namespace millrace
