#include "formats/gguf_vision.h"

#include <dirent.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace millrace {
namespace {

constexpr int kFrames = 2;  // of a patch: the format has two kernels
constexpr double kNormEpsilon = 1e-6;
// Rows of a picture in the published models: 65536 and 16777216 pixels in blocks of 32 x 32.
constexpr int64_t kLeastRows = 64, kMostRows = 16384;

struct NamePair {
  std::string_view gguf;
  std::string_view hf;
};
constexpr NamePair kNames[] = {{"v.position_embd", "pos_embed"},
                               {"v.patch_embd", "patch_embed.proj"},  // the bias; the kernels are below
                               {"v.post_ln", "merger.norm"},
                               {"mm.0", "merger.linear_fc1"},
                               {"mm.2", "merger.linear_fc2"}};
constexpr NamePair kBlockNames[] = {{"ln1", "norm1"},
                                    {"ln2", "norm2"},
                                    {"attn_qkv", "attn.qkv"},
                                    {"attn_out", "attn.proj"},
                                    {"ffn_up", "mlp.linear_fc1"},
                                    {"ffn_down", "mlp.linear_fc2"}};
constexpr NamePair kDeepstackNames[] = {{"norm", "norm"}, {"fc1", "linear_fc1"}, {"fc2", "linear_fc2"}};

std::string_view find_pair(std::span<const NamePair> pairs, std::string_view gguf) {
  for (const NamePair& pair : pairs) {
    if (pair.gguf == gguf) return pair.hf;
  }
  return {};
}

std::string key(std::string_view name) { return fmt::format("clip.vision.{}", name); }

// Layers behind which a merger makes one more set of features.
Result<std::vector<int>> deepstack_of(const GgufModel& tower) {
  std::vector<int> out;
  const GgufValue* value = tower.header().find(key("is_deepstack_layers"));
  if (value == nullptr) return out;
  if (!value->is_array || value->type != GgufType::kBool) {
    return invalid_argument("{} is of type {}; wanted an array of bool", key("is_deepstack_layers"),
                            value->type_text());
  }
  for (uint64_t i = 0; i < value->count; ++i) {
    if (*value->integer(i) != 0) out.push_back(static_cast<int>(i));
  }
  return out;
}

// "v.blk.12.attn_qkv" has the number 12 and the rest "attn_qkv" behind "v.blk.".
bool split_number(std::string_view name, std::string_view prefix, int& number, std::string_view& rest) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  const auto used = static_cast<std::size_t>(end - name.data());
  if (code != std::errc() || used >= name.size() || name[used] != '.') return false;
  rest = name.substr(used + 1);
  return true;
}

// Without prefix; "": not in the table.
std::string hf_stem(std::string_view stem, const std::vector<int>& deepstack) {
  int number = 0;
  std::string_view rest;
  if (split_number(stem, "v.blk.", number, rest)) {
    const std::string_view hf = find_pair(kBlockNames, rest);
    return hf.empty() ? "" : fmt::format("blocks.{}.{}", number, hf);
  }
  if (split_number(stem, "v.deepstack.", number, rest)) {
    const auto at = std::ranges::find(deepstack, number);
    const std::string_view hf = find_pair(kDeepstackNames, rest);
    if (hf.empty() || at == deepstack.end()) return "";
    return fmt::format("deepstack_merger_list.{}.{}", at - deepstack.begin(), hf);
  }
  return std::string(find_pair(kNames, stem));
}

std::string hf_name(const std::string& name, const std::vector<int>& deepstack) {
  if (name == "v.patch_embd.weight") return "visual.patch_embed.frames.0.weight";
  if (name == "v.patch_embd.weight.1") return "visual.patch_embed.frames.1.weight";
  const std::size_t dot = name.rfind('.');
  const std::string stem = dot == std::string::npos ? "" : hf_stem(std::string_view(name).substr(0, dot), deepstack);
  return stem.empty() ? name : fmt::format("visual.{}{}", stem, name.substr(dot));
}

Status check_kind(const GgufHeader& header) {
  std::string_view architecture, projector;
  RETURN_IF_ERROR(gguf_read(header, "general.architecture", std::nullopt, architecture));
  RETURN_IF_ERROR(gguf_read(header, "clip.projector_type", "", projector));
  if (architecture != "clip" || projector != "qwen3vl_merger") {
    return error(StatusCode::kUnsupported,
                 "general.architecture is {} and clip.projector_type {}; wanted clip and qwen3vl_merger",
                 quoted_name(architecture), quoted_name(projector));
  }
  double epsilon = 0;
  RETURN_IF_ERROR(gguf_read(header, key("attention.layer_norm_epsilon"), std::nullopt, epsilon));
  if (std::abs(epsilon - kNormEpsilon) > kNormEpsilon * 1e-3) {
    return error(StatusCode::kUnsupported, "{} is {}; wanted {}", key("attention.layer_norm_epsilon"), epsilon,
                 kNormEpsilon);
  }
  bool gelu = false;
  RETURN_IF_ERROR(gguf_read(header, "clip.use_gelu", false, gelu));
  return gelu ? ok_status() : error(StatusCode::kUnsupported, "clip.use_gelu is false; wanted true");
}

Result<Json> vision_part(const GgufModel& tower) {
  const GgufHeader& header = tower.header();
  RETURN_IF_ERROR(check_kind(header));
  Json out = {{"temporal_patch_size", kFrames}, {"hidden_act", "gelu_pytorch_tanh"}};
  for (const auto& [name, field] : {std::pair{"block_count", "depth"},
                                    {"embedding_length", "hidden_size"},
                                    {"feed_forward_length", "intermediate_size"},
                                    {"attention.head_count", "num_heads"},
                                    {"patch_size", "patch_size"},
                                    {"spatial_merge_size", "spatial_merge_size"},
                                    {"projection_dim", "out_hidden_size"}}) {
    int64_t value = 0;
    RETURN_IF_ERROR(gguf_read(header, key(name), std::nullopt, 1, INT32_MAX, value));
    out[field] = value;
  }
  const GgufTensor* positions = tower.find_tensor("v.position_embd.weight");
  if (positions == nullptr || positions->shape.rank() != 2)
    return invalid_argument("v.position_embd.weight is no matrix; wanted one");
  out["num_position_embeddings"] = positions->shape[0];
  ASSIGN_OR_RETURN(const std::vector<int> deepstack, deepstack_of(tower));
  out["deepstack_visual_indexes"] = deepstack;
  return out;
}

// Ids of the vocabulary by their text.
Status add_token_ids(const GgufModel& model, Json& out) {
  const GgufValue* tokens = model.header().find("tokenizer.ggml.tokens");
  for (const auto& [text, field] : {std::pair{"<|image_pad|>", "image_token_id"},
                                    {"<|video_pad|>", "video_token_id"},
                                    {"<|vision_start|>", "vision_start_token_id"},
                                    {"<|vision_end|>", "vision_end_token_id"}}) {
    if (tokens == nullptr) return invalid_argument("tokenizer.ggml.tokens is missing; wanted the token {}", text);
    const auto at = std::ranges::find(tokens->strings, std::string_view(text));
    if (at == tokens->strings.end()) return invalid_argument("tokenizer.ggml.tokens has no {}; wanted it", text);
    out[field] = at - tokens->strings.begin();
  }
  return ok_status();
}

Status add_sections(const GgufModel& model, std::string_view architecture, Json& text) {
  const std::string name = fmt::format("{}.rope.dimension_sections", architecture);
  const GgufValue* sections = model.header().find(name);
  if (sections == nullptr || !sections->is_array || sections->count < 3) {
    return invalid_argument("{} is {}; wanted a list of 3 numbers or more", name,
                            sections == nullptr ? "missing" : sections->type_text());
  }
  Json list = Json::array();
  for (uint64_t i = 0; i < sections->count; ++i) {
    const std::optional<int64_t> value = sections->integer(i);
    if (!value) return invalid_argument("{} is {}; wanted whole numbers", name, sections->type_text());
    if (i < 3) list.push_back(*value);
    if (i >= 3 && *value != 0) return error(StatusCode::kUnsupported, "{}[{}] is {}; wanted 0", name, i, *value);
  }
  text["rope_parameters"] = {{"rope_type", "default"}, {"mrope_section", list}, {"mrope_interleaved", true}};
  return ok_status();
}

}  // namespace

bool is_tower_file(std::string_view name) { return name.starts_with("mmproj") && name.ends_with(".gguf"); }

Result<std::optional<std::string>> find_tower(const std::string& model_file) {
  const std::string folder = std::filesystem::path(model_file).parent_path().string();
  const std::string shown = folder.empty() ? "." : folder;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(shown.c_str()), &::closedir);
  std::set<std::string> found;
  for (std::size_t i = 0; entries != nullptr && i < kMaxGgufFolderEntries; ++i) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    if (is_tower_file(entry->d_name)) found.insert(entry->d_name);
  }
  if (found.size() > 1) {
    return invalid_argument("{}: holds {} towers, {} and {} among them; wanted one", shown, found.size(),
                            quoted_name(*found.begin()), quoted_name(*std::next(found.begin())));
  }
  if (found.empty()) return std::optional<std::string>();
  return std::optional<std::string>(shown + "/" + *found.begin());
}

Result<Json> add_tower(const Json& language, const GgufModel& model, const GgufModel& tower) {
  auto vision = vision_part(tower);
  if (!vision.ok()) return vision.status().with_prefix(tower.path());
  std::string_view architecture;
  RETURN_IF_ERROR(gguf_read(model.header(), "general.architecture", std::nullopt, architecture));
  Json out = Json::object();
  out["architectures"] = Json::array(
      {architecture == "qwen3vlmoe" ? "Qwen3VLMoeForConditionalGeneration" : "Qwen3VLForConditionalGeneration"});
  out["tie_word_embeddings"] = language.at("tie_word_embeddings");
  RETURN_IF_ERROR(add_token_ids(model, out));
  Json text = language;
  text.erase("architectures");
  RETURN_IF_ERROR(add_sections(model, architecture, text));
  out["text_config"] = std::move(text);
  out["vision_config"] = std::move(vision).value();
  return out;
}

Result<SafetensorsHeader> tower_header(const GgufModel& tower) {
  ASSIGN_OR_RETURN(const std::vector<int> deepstack, deepstack_of(tower));
  SafetensorsHeader out;
  out.data_start = tower.header().data_start;
  for (const GgufTensor& tensor : tower.header().tensors) {
    out.tensors.push_back({hf_name(tensor.name, deepstack), tensor.dtype, tensor.shape, tensor.begin, tensor.end});
  }
  return out;
}

Result<PixelConfig> tower_pixels(const GgufModel& tower) {
  const GgufHeader& header = tower.header();
  PixelConfig out;
  int64_t patch = 0, merge = 0;
  RETURN_IF_ERROR(gguf_read(header, key("patch_size"), std::nullopt, 1, kMaxConfigPatchSize, patch));
  RETURN_IF_ERROR(gguf_read(header, key("spatial_merge_size"), std::nullopt, 1, kMaxConfigMergeSize, merge));
  out.patch_size = static_cast<int>(patch);
  out.merge_size = static_cast<int>(merge);
  out.temporal_patch_size = kFrames;
  const int64_t row = patch * merge * patch * merge;
  RETURN_IF_ERROR(
      gguf_read(header, key("image_min_pixels"), kLeastRows * row, 1, kMaxConfigImagePixels, out.min_pixels));
  RETURN_IF_ERROR(gguf_read(header, key("image_max_pixels"), kMostRows * row, out.min_pixels, kMaxConfigImagePixels,
                            out.max_pixels));
  for (const auto& [name, values] : {std::pair{"image_mean", &out.mean}, {"image_std", &out.std}}) {
    const GgufValue* value = header.find(key(name));
    for (uint64_t i = 0; i < 3; ++i) {
      const bool three = value != nullptr && value->is_array && value->count == 3;
      const std::optional<double> real = three ? value->real(i) : std::nullopt;
      if (!real) {
        return invalid_argument("{} is {}; wanted 3 numbers", key(name),
                                value == nullptr ? "missing" : value->type_text());
      }
      (*values)[i] = *real;
    }
  }
  return out;
}

}  // namespace millrace
