// Llama 1, 2 and 3 (Touvron et al., "LLaMA", 2023; "The Llama 3 Herd of Models", 2024) and Mistral (Jiang et al.,
// "Mistral 7B", 2023), which is Llama with a sliding window:
//
//   x = embed(tokens)
//   for every layer:
//     n = rms_norm(x)
//     q, k, v = rope(q_proj(n)), rope(k_proj(n)), v_proj(n)
//     x += o_proj(attention(q, k, v))                 grouped queries, causal, within the layer's window
//     n = rms_norm(x)
//     x += down_proj(silu(gate_proj(n)) * up_proj(n))
//   logits = lm_head(rms_norm(x))
#include <cmath>

#include "models/architectures.h"
#include "models/decoder.h"

namespace millrace {
namespace {

using kernels::Rows;

struct LlamaLayer {
  TensorView input_norm, post_norm;
  Linear q, k, v, o;
  Linear gate, up, down;

  LlamaLayer(const ModelConfig& c, int index, WeightReader& reader) {
    const std::string layer = fmt::format("model.layers.{}.", index);
    const std::string self_attn = layer + "self_attn.", inner = layer + "mlp.";
    input_norm = reader.tensor(layer + "input_layernorm.weight", {c.hidden_size});
    q = reader.linear(self_attn + "q_proj", c.q_size(), c.hidden_size, c.qkv_bias);
    k = reader.linear(self_attn + "k_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    v = reader.linear(self_attn + "v_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    o = reader.linear(self_attn + "o_proj", c.hidden_size, c.q_size(), c.o_proj_bias);
    post_norm = reader.tensor(layer + "post_attention_layernorm.weight", {c.hidden_size});
    gate = reader.linear(inner + "gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    up = reader.linear(inner + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    down = reader.linear(inner + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
  }

  void attend(const LayerCall& call) const {
    const ModelConfig& c = call.config;
    const Rows q_rows = call.ws.q(call.x.count), k_rows = call.ws.k(call.x.count), v_rows = call.ws.v(call.x.count);
    call.ops.linear(normalized(call.x, input_norm, call.epsilon()), {q.into(q_rows), k.into(k_rows), v.into(v_rows)});
    call.ops.rope(q_rows, c.head_dim, call.cos, call.sin);
    call.ops.rope(k_rows, c.head_dim, call.cos, call.sin);
    call.ops.kv_store(call.kv, call.step.sequences, k_rows, v_rows);
    const Rows attended = call.ws.attended(call.x.count);
    call.ops.attention(q_rows, call.kv, call.step.sequences,
                       {.heads = c.heads,
                        .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                        .window = c.layer_window[static_cast<std::size_t>(call.index)]},
                       attended);
    o.add_to(call.ops, attended, call.x);
  }

  void mlp(const LayerCall& call) const {
    const Rows gate_rows = call.ws.gate(call.x.count), up_rows = call.ws.up(call.x.count);
    call.ops.linear(normalized(call.x, post_norm, call.epsilon()), {gate.into(gate_rows), up.into(up_rows)});
    down.add_to(call.ops, gated(gate_rows, up_rows), call.x);
  }
};

}  // namespace

std::shared_ptr<const Model> make_llama(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader) {
  return std::make_shared<Decoder<LlamaLayer>>(config, layers, weight_version, std::move(weights), reader);
}

}  // namespace millrace
