#include "formats/talker_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/config_fields.h"
#include "formats/nested_config.h"

namespace millrace {
namespace {

using namespace config_fields;

// A part that may be missing; null: an empty object.
Result<Json> optional_part(const Json& root, std::string_view key) {
  const Json* part = json_find(root, key);
  if (part == nullptr) return Json(Json::object());
  if (part->is_object()) return *part;
  return invalid_argument("{} is of type {}; wanted an object", key, json_type_name(*part));
}

// The class has defaults where a language model's file has to have values.
Result<ModelConfig> read_predictor(Json part) {
  const std::pair<const char*, int> defaults[] = {{"vocab_size", 2048},        {"hidden_size", 1024},
                                                  {"intermediate_size", 3072}, {"num_hidden_layers", 5},
                                                  {"num_attention_heads", 16}, {"num_key_value_heads", 8}};
  for (const auto& [key, value] : defaults) {
    if (!part.contains(key)) part[key] = value;
  }
  return read_language_config(Architecture::kQwen3, part);
}

Result<ModelConfig> read_text(Json part) {
  const std::pair<const char*, int> defaults[] = {{"vocab_size", 3072},        {"hidden_size", 1024},
                                                  {"intermediate_size", 2048}, {"num_hidden_layers", 20},
                                                  {"num_attention_heads", 16}, {"moe_intermediate_size", 384}};
  for (const auto& [key, value] : defaults) {
    if (!part.contains(key)) part[key] = value;
  }
  ASSIGN_OR_RETURN(ModelConfig out, read_language_config(Architecture::kQwen3OmniTalker, part));
  RETURN_IF_ERROR(read_mrope(part, out));
  return out;
}

Status read_groups(const Json& talker, const Json& predictor, TalkerConfig& out) {
  RETURN_IF_ERROR(read_int(talker, "num_code_groups", 32, 2, kMaxCodeGroups, out.code_groups));
  int beside = 0;
  RETURN_IF_ERROR(read_int(predictor, "num_code_groups", 32, 2, kMaxCodeGroups, beside));
  if (beside == out.code_groups) return ok_status();
  return invalid_argument("code_predictor_config: num_code_groups is {}; wanted the talker's, {}", beside,
                          out.code_groups);
}

Status read_codec_ids(const Json& talker, int vocab_size, TalkerConfig& out) {
  const std::pair<std::string_view, std::pair<int64_t, int32_t*>> ids[] = {
      {"codec_eos_token_id", {4198, &out.codec_eos}},
      {"codec_nothink_id", {4203, &out.codec_nothink}},
      {"codec_think_bos_id", {4204, &out.codec_think_bos}},
      {"codec_think_eos_id", {4205, &out.codec_think_eos}},
      {"codec_pad_id", {4196, &out.codec_pad}},
      {"codec_bos_id", {4197, &out.codec_bos}}};
  for (const auto& [key, field] : ids) {
    RETURN_IF_ERROR(read_int(talker, key, field.first, 0, vocab_size - 1, *field.second));
  }
  const Json* speakers = json_find(talker, "speaker_id");
  if (speakers == nullptr) return ok_status();
  if (!speakers->is_object() || speakers->size() > kMaxSpeakers) {
    return invalid_argument("speaker_id is {}; wanted an object of at most {} names",
                            speakers->is_object() ? "larger" : json_type_name(*speakers), kMaxSpeakers);
  }
  for (const auto& [name, value] : speakers->items()) {
    int id = 0;
    RETURN_IF_ERROR(read_int(*speakers, name, {}, 0, vocab_size - 1, id).with_prefix("speaker_id"));
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    out.speakers[lower] = id;
  }
  return ok_status();
}

Status read_turn_ids(const Json& root, SpokenTurnIds& out) {
  const std::pair<std::string_view, std::pair<int64_t, int32_t*>> ids[] = {
      {"im_start_token_id", {151644, &out.im_start}},
      {"system_token_id", {8948, &out.system}},
      {"user_token_id", {872, &out.user}},
      {"assistant_token_id", {77091, &out.assistant}},
      {"tts_pad_token_id", {151671, &out.tts_pad}},
      {"tts_bos_token_id", {151672, &out.tts_bos}},
      {"tts_eos_token_id", {151673, &out.tts_eos}}};
  for (const auto& [key, field] : ids) {
    RETURN_IF_ERROR(read_int(root, key, field.first, 0, kMaxVocabSize - 1, *field.second));
  }
  return ok_status();
}

Result<TalkerConfig> read_talker(const Json& talker) {
  TalkerConfig out;
  ASSIGN_OR_RETURN(const Json text, optional_part(talker, "text_config"));
  ASSIGN_OR_RETURN(const Json part, optional_part(talker, "code_predictor_config"));
  RETURN_IF_ERROR(read_groups(talker, part, out));
  Result<ModelConfig> predictor = read_predictor(part);
  if (!predictor.ok()) return predictor.status().with_prefix("code_predictor_config");
  out.predictor = std::move(predictor).value();
  Result<ModelConfig> language = read_text(text);
  if (!language.ok()) return language.status().with_prefix("text_config");
  out.text = std::move(language).value();
  if (out.predictor.hidden_size != out.text.hidden_size) {
    return invalid_argument("code_predictor_config: hidden_size is {}; wanted that of text_config, {}",
                            out.predictor.hidden_size, out.text.hidden_size);
  }
  RETURN_IF_ERROR(read_int(talker, "thinker_hidden_size", 2048, 1, kMaxHiddenSize, out.thinker_hidden_size));
  RETURN_IF_ERROR(read_int(talker, "accept_hidden_layer", 18, 0, kMaxLayers, out.accept_hidden_layer));
  RETURN_IF_ERROR(read_int(talker, "spatial_merge_size", 2, 1, kMaxMergeEdge, out.merge_size));
  RETURN_IF_ERROR(read_codec_ids(talker, out.text.vocab_size, out));
  return out;
}

}  // namespace

Result<TalkerConfig> parse_talker_config(std::string_view text, std::string_view path) {
  return guarded<TalkerConfig>(path, [&]() -> Result<TalkerConfig> {
    ASSIGN_OR_RETURN(const Json root, parse_object(text));
    const Json* talker = json_find(root, "talker_config");
    if (talker == nullptr || !talker->is_object()) {
      return invalid_argument("talker_config is {}; wanted an object",
                              talker == nullptr ? "missing" : json_type_name(*talker));
    }
    Result<TalkerConfig> out = read_talker(*talker);
    if (!out.ok()) return out.status().with_prefix("talker_config");
    RETURN_IF_ERROR(read_turn_ids(root, out->turns));
    return out;
  });
}

}  // namespace millrace
