// ModelConfig and sampling defaults from the metadata of a GGUF file. The values are written down as the config.json of
// the same model and read by parse_model_config, so that both formats go through the same checks and defaults.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/config_fields.h"
#include "formats/gguf_model.h"
#include "formats/gguf_vision.h"
#include "formats/safetensors.h"

namespace millrace {
namespace {

struct GgufArchitecture {
  std::string_view gguf;
  std::string_view hf;
};
constexpr std::array<GgufArchitecture, 6> kArchitectures = {{
    {"llama", "LlamaForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"qwen3moe", "Qwen3MoeForCausalLM"},
    // The language model of Qwen3-VL; its tower is another file. Text has the same position on all three axes, where
    // the rotation is the plain one.
    {"qwen3vl", "Qwen3ForCausalLM"},
    {"qwen3vlmoe", "Qwen3MoeForCausalLM"},
}};
// About pictures: keys of architectures that see.
constexpr std::array<std::string_view, 2> kVisionKeys = {"rope.dimension_sections", "n_deepstack_layers"};

// Keys of the architecture that are read below, or change nothing.
constexpr std::array<std::string_view, 21> kKnownKeys = {"block_count",
                                                         "context_length",
                                                         "embedding_length",
                                                         "feed_forward_length",
                                                         "attention.head_count",
                                                         "attention.head_count_kv",
                                                         "attention.key_length",
                                                         "attention.value_length",
                                                         "attention.layer_norm_rms_epsilon",
                                                         "rope.freq_base",
                                                         "rope.dimension_count",
                                                         "rope.scaling.type",
                                                         "rope.scaling.factor",
                                                         "rope.scaling.original_context_length",
                                                         "rope.scaling.finetuned",
                                                         "rope.scale_linear",
                                                         "vocab_size",
                                                         "tensor_data_layout",
                                                         "expert_count",
                                                         "expert_used_count",
                                                         "expert_feed_forward_length"};
// Keys that this build can follow at one value only.
struct FixedKey {
  std::string_view key;
  double value;
};
constexpr std::array<FixedKey, 17> kFixedKeys = {{{"attention.causal", 1},
                                                  {"attention.sliding_window", 0},
                                                  {"attention.clamp_kqv", 0},
                                                  {"attention.max_alibi_bias", 0},
                                                  {"attention.scale", 0},
                                                  {"attn_logit_softcapping", 0},
                                                  {"final_logit_softcapping", 0},
                                                  {"logit_scale", 0},
                                                  {"residual_scale", 0},
                                                  {"embedding_scale", 0},
                                                  {"pooling_type", 0},
                                                  {"use_parallel_residual", 0},
                                                  {"rope.scaling.attn_factor", 1},
                                                  {"expert_shared_count", 0},
                                                  {"expert_gating_func", 1},
                                                  {"expert_weights_norm", 1},
                                                  {"leading_dense_block_count", 0}}};

class ConfigReader {
 public:
  explicit ConfigReader(const GgufModel& model) : model_(model), header_(model.header()) {}

  Result<Json> run();

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  bool has(std::string_view tensor) const { return model_.find_tensor(tensor) != nullptr; }
  bool has_bias(std::string_view name) const { return has(fmt::format("blk.0.{}.bias", name)); }

  Status read_architecture();
  Status check_keys() const;
  Status copy_int(std::string_view name, std::string_view field, std::optional<int64_t> fallback, int64_t high);
  Status copy_real(std::string_view name, std::string_view field, std::optional<double> fallback);
  Status read_heads();
  Status read_vocabulary();
  Status read_biases();
  Status read_rope();
  Status read_rope_factors(double theta);
  Status read_experts();
  Status read_ids();

  const GgufModel& model_;
  const GgufHeader& header_;
  std::string_view arch_;
  int64_t head_dim_ = 0;
  Json out_ = Json::object();
};

// A float's shortest decimal: what stood in the config.json that it was made from.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

Status ConfigReader::read_architecture() {
  std::string_view type;
  RETURN_IF_ERROR(gguf_read(header_, "general.type", "model", type));
  if (type != "model") {
    return error(StatusCode::kUnsupported, "general.type is {}; wanted \"model\"", quoted_name(type));
  }
  RETURN_IF_ERROR(gguf_read(header_, "general.architecture", std::nullopt, arch_));
  std::string list;
  for (const GgufArchitecture& known : kArchitectures) {
    if (known.gguf == arch_) {
      out_["architectures"] = Json::array({std::string(known.hf)});
      return ok_status();
    }
    list += (list.empty() ? "" : ", ") + std::string(known.gguf);
  }
  return error(StatusCode::kUnsupported, "general.architecture is {}; wanted one of {}", quoted_name(arch_), list);
}

Status ConfigReader::check_keys() const {
  const std::string prefix = key("");
  for (auto at = header_.metadata.lower_bound(prefix); at != header_.metadata.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    const std::string_view name = std::string_view(at->first).substr(prefix.size());
    if (std::find(kKnownKeys.begin(), kKnownKeys.end(), name) != kKnownKeys.end()) continue;
    if (arch_.starts_with("qwen3vl") && std::find(kVisionKeys.begin(), kVisionKeys.end(), name) != kVisionKeys.end()) {
      continue;
    }
    const auto fixed =
        std::find_if(kFixedKeys.begin(), kFixedKeys.end(), [&](const FixedKey& f) { return f.key == name; });
    if (fixed == kFixedKeys.end()) {
      return error(StatusCode::kUnsupported, "has the key {}; wanted only those that this build knows",
                   quoted_name(at->first));
    }
    const GgufValue& value = at->second;
    const std::optional<double> seen = value.is_array ? std::nullopt
                                       : value.type == GgufType::kBool
                                           ? std::optional<double>(static_cast<double>(*value.integer()))
                                           : value.real();
    if (seen == fixed->value) continue;
    return error(StatusCode::kUnsupported, "{} is {}; wanted {}", at->first,
                 seen ? fmt::format("{}", *seen) : "of type " + value.type_text(), fixed->value);
  }
  return ok_status();
}

Status ConfigReader::copy_int(std::string_view name, std::string_view field, std::optional<int64_t> fallback,
                              int64_t high) {
  int64_t value = 0;
  RETURN_IF_ERROR(gguf_read(header_, key(name), fallback, 1, high, value));
  out_[std::string(field)] = value;
  return ok_status();
}

Status ConfigReader::copy_real(std::string_view name, std::string_view field, std::optional<double> fallback) {
  double value = 0;
  RETURN_IF_ERROR(gguf_read(header_, key(name), fallback, value));
  if (!std::isfinite(value)) return invalid_argument("{} is {}; wanted a finite number", key(name), value);
  const GgufValue* stored = header_.find(key(name));
  const bool narrow = stored != nullptr && stored->type == GgufType::kF32;
  out_[std::string(field)] = narrow ? shortest(static_cast<float>(value)) : value;
  return ok_status();
}

Status ConfigReader::read_heads() {
  RETURN_IF_ERROR(copy_int("embedding_length", "hidden_size", std::nullopt, kMaxHiddenSize));
  RETURN_IF_ERROR(copy_int("block_count", "num_hidden_layers", std::nullopt, kMaxLayers));
  RETURN_IF_ERROR(copy_int("context_length", "max_position_embeddings", std::nullopt, kMaxPositions));
  RETURN_IF_ERROR(copy_int("attention.head_count", "num_attention_heads", std::nullopt, kMaxHeads));
  const int64_t heads = out_["num_attention_heads"].get<int64_t>();
  RETURN_IF_ERROR(copy_int("attention.head_count_kv", "num_key_value_heads", heads, kMaxHeads));
  const int64_t share = out_["hidden_size"].get<int64_t>() / heads;
  RETURN_IF_ERROR(gguf_read(header_, key("attention.key_length"), share, 1, kMaxHeadDim, head_dim_));
  for (std::string_view same : {"attention.value_length", "rope.dimension_count"}) {
    int64_t value = 0;
    RETURN_IF_ERROR(gguf_read(header_, key(same), head_dim_, 1, kMaxHeadDim, value));
    if (value != head_dim_) {
      return error(StatusCode::kUnsupported, "{} is {}; wanted {}, the size of a head", key(same), value, head_dim_);
    }
  }
  out_["head_dim"] = head_dim_;
  return copy_real("attention.layer_norm_rms_epsilon", "rms_norm_eps", std::nullopt);
}

Status ConfigReader::read_vocabulary() {
  const GgufTensor* embedding = model_.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.rank() != 2) {
    return invalid_argument("token_embd.weight {}; wanted a matrix",
                            embedding == nullptr ? "is missing" : "has shape " + embedding->shape.to_string());
  }
  const int64_t rows = embedding->shape[0];
  int64_t stated = 0;
  RETURN_IF_ERROR(gguf_read(header_, key("vocab_size"), rows, 1, kMaxVocabSize, stated));
  if (stated != rows) {
    return invalid_argument("{} is {}; wanted {}, the rows of token_embd.weight", key("vocab_size"), stated, rows);
  }
  out_["vocab_size"] = rows;
  out_["tie_word_embeddings"] = !has("output.weight");
  return ok_status();
}

// Biases stand in the file or they do not; config.json has one switch for all of attention and one for the MLP.
Status ConfigReader::read_biases() {
  const bool attention = has_bias("attn_q");
  for (std::string_view other : {"attn_k", "attn_v"}) {
    if (has_bias(other) == attention) continue;
    return error(StatusCode::kUnsupported, "blk.0.attn_q.bias is {} and blk.0.{}.bias is not; wanted both or none",
                 attention ? "there" : "missing", other);
  }
  if (arch_ == "qwen2") return ok_status();  // always has them, as its name implies
  if (has_bias("attn_output") != attention) {
    return error(StatusCode::kUnsupported,
                 "blk.0.attn_q.bias is {} and blk.0.attn_output.bias is not; wanted both or none",
                 attention ? "there" : "missing");
  }
  out_["attention_bias"] = attention;
  out_["mlp_bias"] = has_bias("ffn_gate");
  return ok_status();
}

Status ConfigReader::read_rope_factors(double theta) {
  const GgufTensor* tensor = model_.find_tensor("rope_freqs.weight");
  if (tensor->dtype != DType::kF32 || !(tensor->shape == Shape{head_dim_ / 2})) {
    return invalid_argument("rope_freqs.weight is {} {}; wanted F32 [{}]", dtype_name(tensor->dtype),
                            tensor->shape.to_string(), head_dim_ / 2);
  }
  const std::span<const std::byte> bytes = model_.bytes_of("rope_freqs.weight");
  std::vector<float> factors(bytes.size() / sizeof(float));
  std::memcpy(factors.data(), bytes.data(), bytes.size());
  const std::optional<RopeConfig> rope = llama3_rope_of(factors, theta, static_cast<int>(head_dim_));
  if (!rope) {
    return error(StatusCode::kUnsupported,
                 "rope_freqs.weight holds factors from {} to {}; wanted those of llama3 scaling with its published "
                 "parameters",
                 *std::min_element(factors.begin(), factors.end()), *std::max_element(factors.begin(), factors.end()));
  }
  out_["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", rope->factor},
                          {"low_freq_factor", rope->low_freq_factor},
                          {"high_freq_factor", rope->high_freq_factor},
                          {"original_max_position_embeddings", rope->original_max_position_embeddings}};
  return ok_status();
}

Status ConfigReader::read_rope() {
  RETURN_IF_ERROR(copy_real("rope.freq_base", "rope_theta", 10000.0));
  // As llama.cpp has it: without a type it is linear, a factor of 0 is none, and scale_linear is its old spelling.
  std::string_view type;
  RETURN_IF_ERROR(gguf_read(header_, key("rope.scaling.type"), "linear", type));
  if (type != "none" && type != "linear") {
    return error(StatusCode::kUnsupported, "{} is {}; wanted none or linear", key("rope.scaling.type"),
                 quoted_name(type));
  }
  if (type == "linear") {
    const bool stated = header_.find(key("rope.scaling.type")) != nullptr;
    const bool old = !stated && header_.find(key("rope.scaling.factor")) == nullptr;
    RETURN_IF_ERROR(copy_real(old ? "rope.scale_linear" : "rope.scaling.factor", "factor",
                              stated ? std::nullopt : std::optional<double>(1)));
    const double factor = out_["factor"].get<double>();
    out_.erase("factor");
    if (factor != 0 && (stated || factor != 1)) out_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  }
  if (!has("rope_freqs.weight")) return ok_status();
  if (out_.contains("rope_scaling")) {
    return error(StatusCode::kUnsupported, "has rope_freqs.weight and linear scaling; wanted one of them");
  }
  return read_rope_factors(out_["rope_theta"].get<double>());
}

Status ConfigReader::read_experts() {
  int64_t experts = 0;
  RETURN_IF_ERROR(gguf_read(header_, key("expert_count"), 0, 0, kMaxExperts, experts));
  if (arch_ != "qwen3moe" && arch_ != "qwen3vlmoe") {
    if (experts == 0) return copy_int("feed_forward_length", "intermediate_size", std::nullopt, kMaxIntermediateSize);
    return error(StatusCode::kUnsupported, "{} is {}; wanted 0: only qwen3moe has experts", key("expert_count"),
                 experts);
  }
  RETURN_IF_ERROR(copy_int("expert_count", "num_experts", std::nullopt, kMaxExperts));
  RETURN_IF_ERROR(copy_int("expert_used_count", "num_experts_per_tok", std::nullopt, experts));
  RETURN_IF_ERROR(copy_int("expert_feed_forward_length", "moe_intermediate_size", std::nullopt, kMaxIntermediateSize));
  const int64_t inner = out_["moe_intermediate_size"].get<int64_t>();
  RETURN_IF_ERROR(copy_int("feed_forward_length", "intermediate_size", inner, kMaxIntermediateSize));
  out_["norm_topk_prob"] = true;  // the format's programs always do it for this architecture
  Json dense = Json::array();
  for (int64_t i = 0; i < out_["num_hidden_layers"].get<int64_t>(); ++i) {
    if (!has(fmt::format("blk.{}.ffn_gate_inp.weight", i))) dense.push_back(i);
  }
  out_["mlp_only_layers"] = dense;
  return ok_status();
}

Status ConfigReader::read_ids() {
  for (const auto& [name, field] : {std::pair{"bos_token_id", "bos_token_id"},
                                    {"eos_token_id", "eos_token_id"},
                                    {"padding_token_id", "pad_token_id"}}) {
    const std::string full = fmt::format("tokenizer.ggml.{}", name);
    int64_t id = -1;
    // Some files have 2^32 - 1 for "none".
    RETURN_IF_ERROR(gguf_read(header_, full, -1, -1, UINT32_MAX, id));
    out_[field] = id < 0 || id == UINT32_MAX ? Json() : Json(id);
  }
  return ok_status();
}

Result<Json> ConfigReader::run() {
  RETURN_IF_ERROR(read_architecture());
  RETURN_IF_ERROR(check_keys());
  RETURN_IF_ERROR(read_heads());
  RETURN_IF_ERROR(read_vocabulary());
  RETURN_IF_ERROR(read_experts());
  RETURN_IF_ERROR(read_biases());
  RETURN_IF_ERROR(read_rope());
  RETURN_IF_ERROR(read_ids());
  return out_;
}

}  // namespace

Result<ModelConfig> gguf_model_config(const GgufModel& model) {
  auto json = config_fields::guarded<Json>(model.path(), [&] { return ConfigReader(model).run(); });
  if (!json.ok()) return json.status();
  std::string_view architecture;
  RETURN_IF_ERROR(gguf_read(model.header(), "general.architecture", std::nullopt, architecture));
  std::optional<std::string> tower;
  if (architecture.starts_with("qwen3vl")) {
    ASSIGN_OR_RETURN(tower, find_tower(model.path()));
  }
  if (!tower) return parse_model_config(json->dump(), model.path());
  ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*tower));
  ASSIGN_OR_RETURN(const Json both, add_tower(*json, model, opened));
  ASSIGN_OR_RETURN(ModelConfig config, parse_model_config(both.dump(), model.path()));
  config.vision->kernels_by_frame = true;
  return config;
}

Result<GenerationDefaults> gguf_generation_defaults(const GgufModel& model, const ModelConfig& config) {
  const GgufHeader& header = model.header();
  const auto run = [&]() -> Result<Json> {
    Json out = Json::object();
    for (const auto& [key, field] : {std::pair{"general.sampling.temp", "temperature"},
                                     {"general.sampling.top_k", "top_k"},
                                     {"general.sampling.top_p", "top_p"},
                                     {"general.sampling.min_p", "min_p"},
                                     {"general.sampling.penalty_repeat", "repetition_penalty"}}) {
      if (header.find(key) == nullptr) continue;
      double value = 0;
      RETURN_IF_ERROR(gguf_read(header, key, std::nullopt, value));
      if (!std::isfinite(value)) return invalid_argument("{} is {}; wanted a finite number", key, value);
      const bool integral = std::string_view(field) == "top_k";
      out[field] = integral ? Json(static_cast<int64_t>(value)) : Json(shortest(static_cast<float>(value)));
    }
    // Where a turn or a message ends, the model's text ends too.
    Json ends = Json::array();
    for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
      int64_t id = -1;
      RETURN_IF_ERROR(gguf_read(header, fmt::format("tokenizer.ggml.{}", name), -1, -1, UINT32_MAX, id));
      if (id >= 0 && id != UINT32_MAX && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    }
    out["eos_token_id"] = ends;
    return out;
  };
  auto json = config_fields::guarded<Json>(model.path(), run);
  if (!json.ok()) return json.status();
  return parse_generation_config(json->dump(), model.path(), config);
}

}  // namespace millrace
