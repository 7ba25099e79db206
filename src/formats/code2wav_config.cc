#include "formats/code2wav_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/config_fields.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"

namespace millrace {
namespace {

using namespace config_fields;

Status read_factors(const Json& root, std::string_view key, const Json& fallback, std::vector<int>& out) {
  const Json* list = json_find(root, key);
  if (list == nullptr) list = &fallback;
  if (!list->is_array() || list->size() > kMaxUpsamplings) {
    return invalid_argument("{} is {}; wanted a list of at most {} integers", key,
                            list->is_array() ? fmt::format("a list of {}", list->size()) : json_type_name(*list),
                            kMaxUpsamplings);
  }
  for (const Json& item : *list) {
    if (!item.is_number_integer() || item < 1 || item > kMaxUpsampling) {
      return invalid_argument("{} holds {}; wanted 1 to {}", key,
                              item.is_number_integer() ? item.dump() : json_type_name(item), kMaxUpsampling);
    }
    out.push_back(item.get<int>());
  }
  return ok_status();
}

Status read_transformer(const Json& root, Code2WavConfig& out) {
  RETURN_IF_ERROR(read_int(root, "hidden_size", 1024, 1, kMaxHiddenSize, out.hidden_size));
  RETURN_IF_ERROR(read_int(root, "intermediate_size", 3072, 1, kMaxIntermediateSize, out.intermediate_size));
  RETURN_IF_ERROR(read_int(root, "num_hidden_layers", 8, 1, kMaxLayers, out.layers));
  RETURN_IF_ERROR(read_int(root, "num_attention_heads", 16, 1, kMaxHeads, out.heads));
  RETURN_IF_ERROR(read_int(root, "num_key_value_heads", 16, 1, out.heads, out.kv_heads));
  if (out.heads % out.kv_heads != 0) {
    return invalid_argument("num_key_value_heads is {}; wanted a divisor of num_attention_heads, which is {}",
                            out.kv_heads, out.heads);
  }
  RETURN_IF_ERROR(read_int(root, "head_dim", out.hidden_size / out.heads, 1, kMaxHeadDim, out.head_dim));
  if (out.head_dim % 2 != 0) {
    return invalid_argument("head_dim is {}; wanted an even number, since RoPE turns pairs", out.head_dim);
  }
  RETURN_IF_ERROR(json_read(root, "attention_bias", out.attention_bias));
  RETURN_IF_ERROR(read_int(root, "sliding_window", 72, 1, kMaxPositions, out.sliding_window));
  RETURN_IF_ERROR(read_real(root, "rms_norm_eps", 1e-5, 0, true, 1, out.rms_norm_eps));
  std::string activation = "silu";
  RETURN_IF_ERROR(json_read(root, "hidden_act", activation));
  if (activation == "silu") return ok_status();
  return error(StatusCode::kUnsupported, "hidden_act is {}; wanted silu", quoted_name(activation));
}

// A rope_theta inside wins over the one beside, as in formats/model_config.cc.
Status read_theta(const Json& root, Code2WavConfig& out) {
  constexpr double kMaxTheta = 1e15;
  RETURN_IF_ERROR(read_real(root, "rope_theta", 10000.0, 0, true, kMaxTheta, out.rope_theta));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* inner = json_find(root, key);
    if (inner == nullptr) continue;
    if (!inner->is_object()) {
      return invalid_argument("{} is of type {}; wanted an object", key, json_type_name(*inner));
    }
    std::string type = "default";
    RETURN_IF_ERROR(json_read(*inner, "type", type));
    RETURN_IF_ERROR(json_read(*inner, "rope_type", type));
    if (type != "default") {
      return error(StatusCode::kUnsupported, "{}: rope_type is {}; wanted default", key, quoted_name(type));
    }
    RETURN_IF_ERROR(read_real(*inner, "rope_theta", out.rope_theta, 0, true, kMaxTheta, out.rope_theta));
  }
  return ok_status();
}

Result<Code2WavConfig> read_vocoder(const Json& root) {
  Code2WavConfig out;
  RETURN_IF_ERROR(read_int(root, "codebook_size", 2048, 1, kMaxCodebookSize, out.codebook_size));
  RETURN_IF_ERROR(read_int(root, "num_quantizers", 16, 1, kMaxCodebooks, out.quantizers));
  RETURN_IF_ERROR(read_transformer(root, out));
  RETURN_IF_ERROR(read_theta(root, out));
  RETURN_IF_ERROR(read_factors(root, "upsampling_ratios", Json::array({2, 2}), out.upsampling_ratios));
  RETURN_IF_ERROR(read_factors(root, "upsample_rates", Json::array({8, 5, 4, 3}), out.upsample_rates));
  RETURN_IF_ERROR(read_int(root, "decoder_dim", 1536, 1, kMaxHiddenSize, out.decoder_dim));
  const int halvings = 1 << out.upsample_rates.size();
  if (out.decoder_dim % halvings == 0) return out;
  return invalid_argument("decoder_dim is {}; wanted a multiple of {}, since each of {} blocks halves it",
                          out.decoder_dim, halvings, out.upsample_rates.size());
}

}  // namespace

int64_t Code2WavConfig::samples(int64_t frames) const {
  for (const int ratio : upsampling_ratios) frames *= ratio;
  for (const int rate : upsample_rates) frames = std::max<int64_t>(frames - 1, 0) * rate;
  return frames;
}

int64_t Code2WavConfig::samples_per_frame() const {
  int64_t out = 1;
  for (const int ratio : upsampling_ratios) out *= ratio;
  for (const int rate : upsample_rates) out *= rate;
  return out;
}

Result<Code2WavConfig> parse_code2wav_config(const Json& root) {
  const Json* vocoder = json_find(root, "code2wav_config");
  if (vocoder == nullptr || !vocoder->is_object()) {
    return invalid_argument("code2wav_config is {}; wanted an object",
                            vocoder == nullptr ? "missing" : json_type_name(*vocoder));
  }
  Result<Code2WavConfig> out = read_vocoder(*vocoder);
  if (!out.ok()) return out.status().with_prefix("code2wav_config");
  return out;
}

Result<Code2WavConfig> parse_code2wav_config(std::string_view text, std::string_view path) {
  return guarded<Code2WavConfig>(path, [&]() -> Result<Code2WavConfig> {
    ASSIGN_OR_RETURN(const Json root, parse_object(text));
    return parse_code2wav_config(root);
  });
}

}  // namespace millrace
