// The names of tensors in GGUF and in Hugging Face folders.
#include <array>

#include "formats/gguf_model.h"

namespace millrace {
namespace {

struct NamePair {
  std::string_view gguf;
  std::string_view hf;
};
constexpr std::array<NamePair, 3> kTop = {{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};
// Below "blk.N." and "model.layers.N.".
constexpr std::array<NamePair, 15> kLayer = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"},
}};

// "blk.12.attn_q" is "blk.", "12", "attn_q".
struct LayerName {
  std::string_view number;
  std::string_view rest;
};
std::optional<LayerName> split_layer(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 4) return std::nullopt;
  if (name.find_first_not_of("0123456789") != dot) return std::nullopt;
  return LayerName{name.substr(0, dot), name.substr(dot + 1)};
}

std::string translate(std::string_view name, bool to_hf) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view suffix = name.substr(dot);  // ".weight", ".bias"
  const std::string_view stem = name.substr(0, dot);
  for (const NamePair& pair : kTop) {
    if (stem == (to_hf ? pair.gguf : pair.hf)) return std::string(to_hf ? pair.hf : pair.gguf).append(suffix);
  }
  const std::optional<LayerName> layer = split_layer(stem, to_hf ? "blk." : "model.layers.");
  if (!layer) return std::string(name);
  for (const NamePair& pair : kLayer) {
    if (layer->rest != (to_hf ? pair.gguf : pair.hf)) continue;
    return fmt::format("{}{}.{}{}", to_hf ? "model.layers." : "blk.", layer->number, to_hf ? pair.hf : pair.gguf,
                       suffix);
  }
  return std::string(name);
}

}  // namespace

std::string hf_tensor_name(std::string_view gguf_name) { return translate(gguf_name, true); }
std::string gguf_tensor_name(std::string_view hf_name) { return translate(hf_name, false); }

int rope_permuted_heads(const ModelConfig& config, std::string_view hf_name) {
  if (config.architecture != Architecture::kLlama && config.architecture != Architecture::kMistral) return 0;
  if (hf_name.ends_with(".self_attn.q_proj.weight") || hf_name.ends_with(".self_attn.q_proj.bias")) return config.heads;
  if (hf_name.ends_with(".self_attn.k_proj.weight") || hf_name.ends_with(".self_attn.k_proj.bias"))
    return config.kv_heads;
  return 0;
}

}  // namespace millrace
