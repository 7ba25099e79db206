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

#include "models/model.h"
#include "models/weight_reader.h"

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

  // Adds the attention of layer `index` (in the whole model) to x and stores the rows' keys and values in `kv`.
  void add_to(kernels::Rows x, int index, const ModelConfig& c, const Step& step, const kernels::KvLayer& kv,
              kernels::ConstRows cos, kernels::ConstRows sin, Workspace& ws, kernels::Ops& ops) const {
    const auto epsilon = static_cast<float>(c.rms_norm_eps);
    const kernels::Rows qs = ws.q(x.count), ks = ws.k(x.count), vs = ws.v(x.count);
    ops.linear(kernels::normalized(x, input_norm, epsilon), {q.into(qs), k.into(ks), v.into(vs)});
    ops.rms_norm(qs, q_norm, epsilon, qs);
    ops.rms_norm(ks, k_norm, epsilon, ks);
    ops.rope(qs, c.head_dim, cos, sin);
    ops.rope(ks, c.head_dim, cos, sin);
    ops.kv_store(kv, step.sequences, ks, vs);
    const kernels::Rows attended = ws.attended(x.count);
    ops.attention(qs, kv, step.sequences,
                  {.heads = c.heads,
                   .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                   .window = c.layer_window[static_cast<std::size_t>(index)]},
                  attended);
    o.add_to(ops, attended, x);
  }
};

}  // namespace millrace
