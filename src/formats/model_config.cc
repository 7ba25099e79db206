#include "formats/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/config_fields.h"
#include "formats/nested_config.h"
#include "formats/safetensors.h"

namespace millrace {
namespace {

using namespace config_fields;

// What differs between the architectures in their config classes of transformers 5.12. -1: no default, 0: "as heads".
struct ArchitectureRules {
  Architecture architecture;
  std::string_view name;
  std::string_view model_type;
  int64_t default_kv_heads;
  int64_t default_positions;
  int64_t default_head_dim;  // 0: hidden_size / heads
  int64_t default_bos;
  int64_t default_eos;
};
constexpr std::string_view kThinkerType = "qwen3_omni_moe_thinker";  // the model_type of a thinker alone
constexpr std::string_view kTalkerType = "qwen3_omni_moe_talker_text";
constexpr std::string_view kQwen3Classifier = "Qwen3ForSequenceClassification";
// By the number of the architecture; then the other names of some.
constexpr std::array<ArchitectureRules, 11> kArchitectures = {{
    {Architecture::kLlama, "LlamaForCausalLM", "llama", 0, 2048, 0, 1, 2},
    {Architecture::kMistral, "MistralForCausalLM", "mistral", 8, 131072, 0, 1, 2},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2", 32, 32768, 0, -1, -1},
    {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3", 32, 32768, 128, -1, -1},
    {Architecture::kQwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe", 4, 32768, 0, -1, -1},
    {Architecture::kQwen3Vl, "Qwen3VLForConditionalGeneration", "qwen3_vl", 32, 128000, 128, -1, -1},
    {Architecture::kQwen3VlMoe, "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", 16, 128000, 0, -1, -1},
    {Architecture::kQwen3OmniMoe, "Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe", 4, 32768, 0, -1, -1},
    {Architecture::kQwen3OmniTalker, "Qwen3OmniMoeTalkerForConditionalGeneration", kTalkerType, 2, 32768, 0, -1, -1},
    {Architecture::kQwen3OmniMoe, "Qwen3OmniMoeThinkerForConditionalGeneration", kThinkerType, 4, 32768, 0, -1, -1},
    {Architecture::kQwen3, kQwen3Classifier, "qwen3", 32, 32768, 128, -1, -1},
}};
constexpr int64_t kMistralDefaultWindow = 4096;
constexpr int64_t kQwenDefaultWindow = 4096;
constexpr int64_t kQwenDefaultFullLayers = 28;  // max_window_layers

const ArchitectureRules& rules_of(Architecture architecture) {
  return kArchitectures[static_cast<std::size_t>(architecture)];
}

std::string supported_list() {
  std::string list;
  for (const ArchitectureRules& rules : kArchitectures) {
    if (rules.architecture == Architecture::kQwen3OmniTalker) continue;
    list += (list.empty() ? "" : ", ") + std::string(rules.name);
  }
  return list;
}

Status read_architecture(const Json& root, ModelConfig& config) {
  std::string name;
  std::string model_type;
  RETURN_IF_ERROR(json_read(root, "model_type", model_type));
  if (const Json* list = json_find(root, "architectures"); list != nullptr) {
    if (!list->is_array() || list->empty() || !(*list)[0].is_string()) {
      return invalid_argument("architectures is {}; wanted a list with one name",
                              list->is_array() ? "a list without a name first" : json_type_name(*list));
    }
    name = (*list)[0].get<std::string>();
  }
  for (const ArchitectureRules& rules : kArchitectures) {
    if (rules.architecture == Architecture::kQwen3OmniTalker) continue;
    if (name.empty() ? model_type != rules.model_type : name != rules.name) continue;
    // transformers goes by the type and this build by the name: with two models in one file, one of them is wrong.
    if (!model_type.empty() && model_type != rules.model_type) {
      return invalid_argument("model_type is {}; wanted {}, that of {} in architectures", quoted_name(model_type),
                              quoted_name(rules.model_type), rules.name);
    }
    config.architecture = rules.architecture;
    config.model_type = rules.model_type;
    config.score_head = rules.name == kQwen3Classifier;
    return ok_status();
  }
  return error(StatusCode::kUnsupported, "architecture is {}; wanted one of {}",
               name.empty() && model_type.empty() ? "missing" : quoted_name(name.empty() ? model_type : name),
               supported_list());
}

bool is_vision_language(Architecture architecture) {
  return architecture == Architecture::kQwen3Vl || architecture == Architecture::kQwen3VlMoe ||
         architecture == Architecture::kQwen3OmniMoe;
}

bool has_expert_layers(Architecture architecture) {
  return architecture == Architecture::kQwen3Moe || architecture == Architecture::kQwen3VlMoe ||
         architecture == Architecture::kQwen3OmniMoe || architecture == Architecture::kQwen3OmniTalker;
}

Status read_sizes(const Json& root, ModelConfig& config) {
  const ArchitectureRules& rules = rules_of(config.architecture);
  RETURN_IF_ERROR(read_int(root, "hidden_size", {}, 1, kMaxHiddenSize, config.hidden_size));
  RETURN_IF_ERROR(read_int(root, "intermediate_size", {}, 1, kMaxIntermediateSize, config.intermediate_size));
  RETURN_IF_ERROR(read_int(root, "num_hidden_layers", {}, 1, kMaxLayers, config.layers));
  RETURN_IF_ERROR(read_int(root, "num_attention_heads", {}, 1, kMaxHeads, config.heads));
  // An explicit null means "as many as heads" everywhere; absence means the class's default.
  const bool as_heads = rules.default_kv_heads == 0 || root.contains("num_key_value_heads");
  RETURN_IF_ERROR(read_int(root, "num_key_value_heads", as_heads ? config.heads : rules.default_kv_heads, 1, kMaxHeads,
                           config.kv_heads));
  if (config.kv_heads > config.heads || config.heads % config.kv_heads != 0) {
    return invalid_argument("num_key_value_heads is {}; wanted a divisor of num_attention_heads, which is {}",
                            config.kv_heads, config.heads);
  }
  const bool explicit_head_dim = json_find(root, "head_dim") != nullptr;
  const bool derived = !explicit_head_dim && rules.default_head_dim == 0;
  if (config.hidden_size % config.heads != 0 && (derived || config.architecture == Architecture::kLlama)) {
    return invalid_argument("hidden_size is {}; wanted a multiple of num_attention_heads, which is {}",
                            config.hidden_size, config.heads);
  }
  RETURN_IF_ERROR(read_int(root, "head_dim", derived ? config.hidden_size / config.heads : rules.default_head_dim, 1,
                           kMaxHeadDim, config.head_dim));
  if (config.head_dim % 2 != 0) {
    return invalid_argument("head_dim is {}{}; wanted an even number, since RoPE turns pairs", config.head_dim,
                            derived ? " (hidden_size / num_attention_heads)" : "");
  }
  RETURN_IF_ERROR(read_int(root, "vocab_size", {}, 1, kMaxVocabSize, config.vocab_size));
  RETURN_IF_ERROR(read_int(root, "max_position_embeddings", rules.default_positions, 1, kMaxPositions,
                           config.max_position_embeddings));
  return read_real(root, "rms_norm_eps", 1e-6, 0, true, 1, config.rms_norm_eps);
}

Status read_features(const Json& root, ModelConfig& config) {
  RETURN_IF_ERROR(json_read(root, "tie_word_embeddings", config.tie_word_embeddings));
  if (config.score_head && !config.tie_word_embeddings) {
    return error(StatusCode::kUnsupported,
                 "tie_word_embeddings is false; wanted true for {}, which has no other head of the vocabulary",
                 kQwen3Classifier);
  }
  bool causal = true;
  RETURN_IF_ERROR(json_read(root, "is_causal", causal));
  if (!causal) {
    return error(StatusCode::kUnsupported,
                 "is_causal is false; wanted true: a token attends to itself and those before it alone");
  }
  bool attention_bias = false;
  bool mlp_bias = false;
  RETURN_IF_ERROR(json_read(root, "attention_bias", attention_bias));
  RETURN_IF_ERROR(json_read(root, "mlp_bias", mlp_bias));
  const bool qwen3 = config.architecture >= Architecture::kQwen3;  // and its relatives, which follow it
  const bool has_choice = config.architecture == Architecture::kLlama || qwen3;
  config.qkv_bias = config.architecture == Architecture::kQwen2 || (has_choice && attention_bias);
  config.o_proj_bias = has_choice && attention_bias;
  config.mlp_bias = config.architecture == Architecture::kLlama && mlp_bias;
  config.qk_norm = qwen3;

  std::string activation = "silu";
  RETURN_IF_ERROR(json_read(root, "hidden_act", activation));
  if (activation != "silu" && activation != "swish") {
    return error(StatusCode::kUnsupported, "hidden_act is {}; wanted silu", quoted_name(activation));
  }
  if (const Json* quantized = json_find(root, "quantization_config"); quantized != nullptr) {
    return error(StatusCode::kUnsupported, "quantization_config is present; wanted weights in F32, F16 or BF16");
  }
  for (std::string_view key : {"dtype", "torch_dtype"}) {
    std::string name;
    RETURN_IF_ERROR(json_read(root, key, name));
    if (name.empty() || config.dtype) continue;
    if (name == "float32") config.dtype = DType::kF32;
    if (name == "float16") config.dtype = DType::kF16;
    if (name == "bfloat16") config.dtype = DType::kBF16;
    if (!config.dtype) {
      return error(StatusCode::kUnsupported, "{} is {}; wanted float32, float16 or bfloat16", key, quoted_name(name));
    }
  }
  return ok_status();
}

Status read_experts(const Json& root, ModelConfig& config) {
  if (!has_expert_layers(config.architecture)) return ok_status();
  const bool vl_moe = config.architecture == Architecture::kQwen3VlMoe;
  const auto number = [&](std::string_view key, int64_t usual, int64_t of_qwen3_vl_moe, int64_t most, int& out) {
    return read_int(root, key, vl_moe ? of_qwen3_vl_moe : usual, 1, most, out);
  };
  // transformers takes both names for the same field.
  const std::string_view key = json_find(root, "num_experts") != nullptr ? "num_experts" : "num_local_experts";
  RETURN_IF_ERROR(number(key, 128, 60, kMaxExperts, config.num_experts));
  RETURN_IF_ERROR(number("num_experts_per_tok", 8, 4, config.num_experts, config.experts_per_token));
  RETURN_IF_ERROR(number("moe_intermediate_size", 768, 1408, kMaxIntermediateSize, config.moe_intermediate_size));
  // Qwen3-VL-MoE's class divides by the sum whatever the file has.
  config.norm_topk_prob = vl_moe || config.architecture == Architecture::kQwen3OmniMoe;
  RETURN_IF_ERROR(json_read(root, "norm_topk_prob", config.norm_topk_prob));
  if (vl_moe && !config.norm_topk_prob) {
    return error(StatusCode::kUnsupported, "norm_topk_prob is false; wanted true for {}",
                 architecture_name(config.architecture));
  }
  if (config.architecture ==
      Architecture::kQwen3OmniTalker) {  // which has experts in all layers, whatever the file has
    return read_int(root, "shared_expert_intermediate_size", {}, 1, kMaxIntermediateSize, config.shared_expert_size);
  }
  RETURN_IF_ERROR(read_int(root, "decoder_sparse_step", 1, 1, INT32_MAX, config.decoder_sparse_step));
  const Json* only = json_find(root, "mlp_only_layers");
  if (only == nullptr) return ok_status();
  if (!only->is_array() || only->size() > static_cast<std::size_t>(kMaxLayers)) {
    return invalid_argument("mlp_only_layers is {}; wanted a list of at most {} layers",
                            only->is_array() ? fmt::format("a list of {}", only->size()) : json_type_name(*only),
                            kMaxLayers);
  }
  for (const Json& item : *only) {
    if (!item.is_number_integer() || item < 0 || item >= config.layers) {
      return invalid_argument("mlp_only_layers holds {}; wanted layers from 0 to {}",
                              item.is_number_integer() ? item.dump() : json_type_name(item), config.layers - 1);
    }
    config.mlp_only_layers.push_back(item.get<int>());
  }
  std::sort(config.mlp_only_layers.begin(), config.mlp_only_layers.end());
  return ok_status();
}

// Where the class reads layer_types: every entry is full_attention or sliding_attention, one a layer.
Status apply_layer_types(const Json& types, int window, ModelConfig& config) {
  if (!types.is_array() || types.size() != static_cast<std::size_t>(config.layers)) {
    return invalid_argument("layer_types has {} entries; wanted a list of {}, one a layer",
                            types.is_array() ? types.size() : 0, config.layers);
  }
  for (int i = 0; i < config.layers; ++i) {
    const Json& type = types[static_cast<std::size_t>(i)];
    const std::string name = type.is_string() ? type.get<std::string>() : std::string(json_type_name(type));
    if (name == "full_attention") {
      config.layer_window[static_cast<std::size_t>(i)] = 0;
    } else if (name == "sliding_attention" && window > 0) {
      config.layer_window[static_cast<std::size_t>(i)] = window;
    } else {
      return error(StatusCode::kUnsupported, "layer_types[{}] is {}; wanted full_attention{}", i, quoted_name(name),
                   window > 0 ? " or sliding_attention" : " since there is no sliding_window");
    }
  }
  return ok_status();
}

Status read_windows(const Json& root, ModelConfig& config) {
  config.layer_window.assign(static_cast<std::size_t>(config.layers), 0);
  const Json* types = json_find(root, "layer_types");
  int window = 0;
  const auto read_window = [&](int64_t fallback) {
    // An explicit null switches the window off.
    if (root.contains("sliding_window") && root.at("sliding_window").is_null()) return ok_status();
    return read_int(root, "sliding_window", fallback, 1, kMaxPositions, window);
  };
  switch (config.architecture) {
    case Architecture::kLlama:
      return types != nullptr ? apply_layer_types(*types, 0, config) : ok_status();
    case Architecture::kMistral: {
      RETURN_IF_ERROR(read_window(kMistralDefaultWindow));
      // transformers' Mistral windows every layer, whatever layer_types is; a file with other windows is no
      // Mistral.
      if (types != nullptr) RETURN_IF_ERROR(apply_layer_types(*types, window, config));
      for (int& entry : config.layer_window) {
        if (types != nullptr && entry != window) {
          return error(StatusCode::kUnsupported,
                       "layer_types mixes full_attention with a sliding_window of {}; wanted "
                       "one kind in all layers of a Mistral model",
                       window);
        }
        entry = window;
      }
      return ok_status();
    }
    case Architecture::kQwen3Vl:
    case Architecture::kQwen3VlMoe:  // the classes have no windows
      return types != nullptr ? apply_layer_types(*types, 0, config) : ok_status();
    case Architecture::kQwen3OmniMoe:
    case Architecture::kQwen3OmniTalker:
      // The attention of transformers' class sees everything, its cache keeps a window: their answers would differ.
      if (const Json* given = json_find(root, "sliding_window"); given != nullptr) {
        return error(StatusCode::kUnsupported, "sliding_window is {}; wanted null", given->dump());
      }
      return types != nullptr ? apply_layer_types(*types, 0, config) : ok_status();
    case Architecture::kQwen2:
    case Architecture::kQwen3:
    case Architecture::kQwen3Moe:
      break;
  }
  bool use_window = false;
  RETURN_IF_ERROR(json_read(root, "use_sliding_window", use_window));
  if (use_window) RETURN_IF_ERROR(read_window(kQwenDefaultWindow));
  if (config.architecture == Architecture::kQwen3Moe) {  // one mask for all layers
    std::fill(config.layer_window.begin(), config.layer_window.end(), window);
    return ok_status();
  }
  if (types != nullptr) return apply_layer_types(*types, window, config);
  int full_layers = 0;
  RETURN_IF_ERROR(read_int(root, "max_window_layers", kQwenDefaultFullLayers, 0, INT32_MAX, full_layers));
  for (int i = full_layers; i < config.layers; ++i) config.layer_window[static_cast<std::size_t>(i)] = window;
  return ok_status();
}

Status read_special_ids(const Json& root, ModelConfig& config) {
  const ArchitectureRules& rules = rules_of(config.architecture);
  if (!root.contains("bos_token_id") && rules.default_bos >= 0 && rules.default_bos < config.vocab_size) {
    config.bos_token_id = static_cast<int32_t>(rules.default_bos);
  }
  if (!root.contains("eos_token_id") && rules.default_eos >= 0 && rules.default_eos < config.vocab_size) {
    config.eos_token_ids = {static_cast<int32_t>(rules.default_eos)};
  }
  RETURN_IF_ERROR(read_id(root, "bos_token_id", config.vocab_size, config.bos_token_id));
  RETURN_IF_ERROR(read_id(root, "pad_token_id", config.vocab_size, config.pad_token_id));
  return read_ids(root, "eos_token_id", config.vocab_size, config.eos_token_ids);
}

// rope_scaling wins over rope_parameters, a rope_theta inside wins over the one beside, as in transformers.
Status read_rope(const Json& root, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  constexpr double kMaxTheta = 1e15;
  constexpr double kMaxFactor = 1e6;
  const Json* scaling = json_find(root, "rope_scaling");
  const Json* parameters = json_find(root, "rope_parameters");
  const std::string_view where = scaling != nullptr && !scaling->empty() ? "rope_scaling" : "rope_parameters";
  const Json* found = where == "rope_scaling" ? scaling : parameters;
  if (found != nullptr && !found->is_object()) {
    return invalid_argument("{} is of type {}; wanted an object", where, json_type_name(*found));
  }
  const Json inner = found != nullptr ? *found : Json::object();
  for (const auto& [key, value] : inner.items()) {
    if (value.is_object()) {
      return error(StatusCode::kUnsupported, "{} holds the object {}; wanted one rope for all layers", where,
                   quoted_name(key));
    }
  }
  const bool omni = config.architecture == Architecture::kQwen3OmniMoe;
  const double default_theta = omni ? 1e6 : is_vision_language(config.architecture) ? 500000.0 : 10000.0;
  RETURN_IF_ERROR(read_real(root, "rope_theta", default_theta, 0, true, kMaxTheta, rope.theta));
  const auto inside = [&](const Status& status) { return status.with_prefix(where); };
  RETURN_IF_ERROR(inside(read_real(inner, "rope_theta", rope.theta, 0, true, kMaxTheta, rope.theta)));
  for (const Json* object : {&root, &inner}) {
    double partial = 1.0;
    RETURN_IF_ERROR(json_read(*object, "partial_rotary_factor", partial));
    if (partial != 1.0) {
      return error(StatusCode::kUnsupported, "partial_rotary_factor is {}; wanted 1", partial);
    }
  }
  std::string type = "default";
  RETURN_IF_ERROR(inside(json_read(inner, "type", type)));
  RETURN_IF_ERROR(inside(json_read(inner, "rope_type", type)));
  if (type == "default") return ok_status();
  if (type != "linear" && type != "llama3") {
    return error(StatusCode::kUnsupported, "{}: rope_type is {}; wanted default, linear or llama3", where,
                 quoted_name(type));
  }
  RETURN_IF_ERROR(inside(read_real(inner, "factor", {}, 0, true, kMaxFactor, rope.factor)));
  rope.type = type == "linear" ? RopeType::kLinear : RopeType::kLlama3;
  if (rope.type == RopeType::kLinear) return ok_status();
  RETURN_IF_ERROR(inside(read_real(inner, "low_freq_factor", {}, 0, true, kMaxFactor, rope.low_freq_factor)));
  RETURN_IF_ERROR(inside(read_real(inner, "high_freq_factor", {}, 0, true, kMaxFactor, rope.high_freq_factor)));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return invalid_argument("{}: high_freq_factor is {}; wanted more than low_freq_factor, which is {}", where,
                            rope.high_freq_factor, rope.low_freq_factor);
  }
  // A value beside the object wins over the one inside (transformers keeps this for old files).
  const Json& source = json_find(root, "original_max_position_embeddings") != nullptr ? root : inner;
  return inside(read_int(source, "original_max_position_embeddings", config.max_position_embeddings, 1, kMaxPositions,
                         rope.original_max_position_embeddings));
}

Status read_language(const Json& root, ModelConfig& config) {
  RETURN_IF_ERROR(read_sizes(root, config));
  RETURN_IF_ERROR(read_features(root, config));
  RETURN_IF_ERROR(read_experts(root, config));
  RETURN_IF_ERROR(read_windows(root, config));
  RETURN_IF_ERROR(read_rope(root, config));
  return read_special_ids(root, config);
}

// A language model's part and towers beside it.
Status read_nested(const Json& root, ModelConfig& config) {
  ASSIGN_OR_RETURN(const Json language, language_part(root));
  RETURN_IF_ERROR(read_language(language, config).with_prefix("text_config"));
  return read_towers(root, language, config);
}

Result<ModelConfig> parse_config(std::string_view text) {
  ASSIGN_OR_RETURN(const Json file, parse_object(text));
  ModelConfig config;
  RETURN_IF_ERROR(read_architecture(file, config));
  if (!is_vision_language(config.architecture)) {
    RETURN_IF_ERROR(read_language(file, config));
    return config;
  }
  const bool complete = config.architecture == Architecture::kQwen3OmniMoe && config.model_type != kThinkerType;
  if (!complete) {
    RETURN_IF_ERROR(read_nested(file, config));
    return config;
  }
  ASSIGN_OR_RETURN(const Json thinker, thinker_part(file));
  RETURN_IF_ERROR(read_nested(thinker, config).with_prefix("thinker_config"));
  RETURN_IF_ERROR(read_turn_end(file, config));
  return config;
}

}  // namespace

Result<ModelConfig> read_language_config(Architecture architecture, const Json& fields) {
  ModelConfig out;
  out.architecture = architecture;
  out.model_type = rules_of(architecture).model_type;
  RETURN_IF_ERROR(read_language(fields, out));
  return out;
}

bool ModelConfig::has_experts(int layer) const {
  return num_experts > 0 && (layer + 1) % decoder_sparse_step == 0 &&
         !std::binary_search(mlp_only_layers.begin(), mlp_only_layers.end(), layer);
}

std::string_view architecture_name(Architecture architecture) { return rules_of(architecture).name; }

std::string_view rope_type_name(RopeType type) {
  return type == RopeType::kDefault ? "default" : type == RopeType::kLinear ? "linear" : "llama3";
}

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view path) {
  return guarded<ModelConfig>(path, [&] { return parse_config(text); });
}

int64_t parameter_count(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t q = config.q_size();
  const int64_t kv = config.kv_size();
  int64_t layer = hidden * q + 2 * hidden * kv + q * hidden + 2 * hidden;
  if (config.qkv_bias) layer += q + 2 * kv;
  if (config.o_proj_bias) layer += hidden;
  const int64_t mlp = 3 * hidden * inner + (config.mlp_bias ? 2 * inner + hidden : 0);
  const int64_t experts = hidden * config.num_experts * (1 + 3 * static_cast<int64_t>(config.moe_intermediate_size));
  if (config.qk_norm) layer += 2 * static_cast<int64_t>(config.head_dim);
  const int64_t table = hidden * config.vocab_size;
  int64_t count = config.layers * layer + table * (config.tie_word_embeddings ? 1 : 2) + hidden;
  for (int i = 0; i < config.layers; ++i) count += config.has_experts(i) ? experts : mlp;
  return count;
}

int64_t kv_bytes_per_token(const ModelConfig& config, DType dtype) {
  return 2ll * config.layers * config.kv_size() * static_cast<int64_t>(dtype_size(dtype));
}

}  // namespace millrace
