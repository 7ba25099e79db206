// The attention of Qwen3's family: an RMSNorm over each head's query and key before the rotation, no biases in most
// models. heads * head_dim may differ from the hidden size. Shared by the dense and the mixture-of-experts models.
//
//   n = rms_norm(x)
//   q, k, v = rope(head_norm(q_proj(n))), rope(head_norm(k_proj(n))), v_proj(n)
//   x += o_proj(attention(q, k, v))
//
// Thread safety: that of Model: const after it was made.
#pragma once

#include <cmath>
#include <string>

#include "models/decoder.h"

namespace millrace {

struct Qwen3Attention {
  TensorView input_norm;
  TensorView q_norm, k_norm;  // over head_dim
  Linear q, k, v, o;

  // `layer` is "model.layers.N.".
  Qwen3Attention(const ModelConfig& c, const std::string& layer, WeightReader& reader) {
    const std::string attention = layer + "self_attn.";
    input_norm = reader.tensor(layer + "input_layernorm.weight", {c.hidden_size});
    q = reader.linear(attention + "q_proj", c.q_size(), c.hidden_size, c.qkv_bias);
    k = reader.linear(attention + "k_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    v = reader.linear(attention + "v_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    q_norm = reader.tensor(attention + "q_norm.weight", {c.head_dim});
    k_norm = reader.tensor(attention + "k_norm.weight", {c.head_dim});
    o = reader.linear(attention + "o_proj", c.hidden_size, c.q_size(), c.o_proj_bias);
  }

  // Adds the attention to x and stores the rows' keys and values.
  void add_to(const LayerCall& call) const {
    const ModelConfig& c = call.config;
    const kernels::Rows qs = call.ws.q(call.x.count), ks = call.ws.k(call.x.count), vs = call.ws.v(call.x.count);
    call.ops.linear(kernels::normalized(call.x, input_norm, call.epsilon()), {q.into(qs), k.into(ks), v.into(vs)});
    call.ops.rms_norm(qs, q_norm, call.epsilon(), qs);
    call.ops.rms_norm(ks, k_norm, call.epsilon(), ks);
    call.ops.rope(qs, c.head_dim, call.cos, call.sin);
    call.ops.rope(ks, c.head_dim, call.cos, call.sin);
    call.ops.kv_store(call.kv, call.step.sequences, ks, vs);
    const kernels::Rows attended = call.ws.attended(call.x.count);
    call.ops.attention(qs, call.kv, call.step.sequences,
                       {.heads = c.heads,
                        .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                        .window = c.layer_window[static_cast<std::size_t>(call.index)]},
                       attended);
    o.add_to(call.ops, attended, call.x);
  }
};

}  // namespace millrace
