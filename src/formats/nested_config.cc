#include "formats/nested_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/config_fields.h"

namespace millrace {
namespace {

using namespace config_fields;

}  // namespace

Status read_mrope(const Json& root, ModelConfig& config) {
  const Json* scaling = json_find(root, "rope_scaling");
  const Json* found = scaling != nullptr && !scaling->empty() ? scaling : json_find(root, "rope_parameters");
  const Json inner = found != nullptr ? *found : Json::object();
  bool interleaved = true;
  RETURN_IF_ERROR(json_read(inner, "mrope_interleaved", interleaved));
  if (!interleaved) return error(StatusCode::kUnsupported, "mrope_interleaved is false; wanted true");
  const Json* section = json_find(inner, "mrope_section");
  const Json fallback = Json::array({24, 20, 20});
  if (section == nullptr) section = &fallback;
  if (!section->is_array() || section->size() != 3) {
    return invalid_argument("mrope_section is {}; wanted a list of 3 integers", json_type_name(*section));
  }
  int sum = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const Json& item = (*section)[i];
    if (!item.is_number_integer() || item < 0 || item > config.head_dim / 2) {
      return invalid_argument("mrope_section[{}] is {}; wanted 0 to {}", i,
                              item.is_number_integer() ? item.dump() : json_type_name(item), config.head_dim / 2);
    }
    sum += config.rope.mrope_section[i] = item.get<int>();
  }
  if (sum == config.head_dim / 2) return ok_status();
  return invalid_argument("mrope_section has {} frequencies; wanted head_dim / 2, which is {}", sum,
                          config.head_dim / 2);
}

Result<Json> thinker_part(const Json& root) {
  const Json* thinker = json_find(root, "thinker_config");
  if (thinker == nullptr || !thinker->is_object()) {
    return invalid_argument("thinker_config is {}; wanted an object",
                            thinker == nullptr ? "missing" : json_type_name(*thinker));
  }
  Json out = *thinker;
  for (const char* key : {"dtype", "torch_dtype", "quantization_config", "is_causal"}) {
    if (json_find(out, key) == nullptr && root.contains(key)) out[key] = root.at(key);
  }
  return out;
}

Status read_turn_end(const Json& root, ModelConfig& config) {
  constexpr int kTurnEnd = 151645;
  int id = kTurnEnd;
  RETURN_IF_ERROR(read_int(root, "im_end_token_id", kTurnEnd, 0, kMaxVocabSize, id));
  std::vector<int32_t>& ids = config.eos_token_ids;
  if (id < config.vocab_size && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ok_status();
}

Result<Json> language_part(const Json& root) {
  const Json* text = json_find(root, "text_config");
  if (text == nullptr || !text->is_object()) {
    return invalid_argument("text_config is {}; wanted an object", text == nullptr ? "missing" : json_type_name(*text));
  }
  Json out = *text;
  for (const char* key : {"dtype", "torch_dtype", "eos_token_id", "bos_token_id", "pad_token_id", "is_causal"}) {
    if (json_find(out, key) == nullptr && root.contains(key)) out[key] = root.at(key);
  }
  // transformers looks for both outside alone.
  for (const char* key : {"tie_word_embeddings", "quantization_config"}) {
    out.erase(key);
    if (json_find(root, key) != nullptr) out[key] = root.at(key);
  }
  return out;
}

Status read_towers(const Json& root, const Json& language, ModelConfig& config) {
  RETURN_IF_ERROR(read_mrope(language, config).with_prefix("text_config"));
  ASSIGN_OR_RETURN(config.vision, parse_vision_config(root, config.hidden_size, config.vocab_size));
  if (config.architecture == Architecture::kQwen3OmniMoe) {
    config.vision->merger_names = MergerNames::kQwen3Omni;
    ASSIGN_OR_RETURN(config.audio, parse_audio_config(root, config.hidden_size, config.vocab_size));
  }
  const std::size_t additions = config.vision->deepstack.size();
  if (additions <= static_cast<std::size_t>(config.layers)) return ok_status();
  return invalid_argument("deepstack_visual_indexes has {} entries; wanted at most one for each of the {} layers",
                          additions, config.layers);
}

}  // namespace millrace
