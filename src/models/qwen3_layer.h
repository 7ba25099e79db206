// A dense layer of Qwen3: attention, then an MLP with a gate. Of the language model and of Qwen3-Omni's code predictor.
//
// Thread safety: that of Model: const after it was made.
#pragma once

#include <string>

#include "models/decoder.h"
#include "models/qwen3_attention.h"

namespace millrace {

struct Qwen3Layer {
  Qwen3Attention attention;
  TensorView post_norm;
  Linear gate, up, down;

  Qwen3Layer(const ModelConfig& c, int index, WeightReader& reader)
      : Qwen3Layer(c, fmt::format("model.layers.{}.", index), reader) {}
  // `layer` begins the names of its tensors.
  Qwen3Layer(const ModelConfig& c, const std::string& layer, WeightReader& reader) : attention(c, layer, reader) {
    const std::string inner = layer + "mlp.";
    post_norm = reader.tensor(layer + "post_attention_layernorm.weight", {c.hidden_size});
    gate = reader.linear(inner + "gate_proj", c.intermediate_size, c.hidden_size, false);
    up = reader.linear(inner + "up_proj", c.intermediate_size, c.hidden_size, false);
    down = reader.linear(inner + "down_proj", c.hidden_size, c.intermediate_size, false);
  }

  void attend(const LayerCall& call) const { attention.add_to(call); }

  void mlp(const LayerCall& call) const {
    const kernels::Rows gate_rows = call.ws.gate(call.x.count), up_rows = call.ws.up(call.x.count);
    call.ops.linear(kernels::normalized(call.x, post_norm, call.epsilon()), {gate.into(gate_rows), up.into(up_rows)});
    down.add_to(call.ops, kernels::gated(gate_rows, up_rows), call.x);
  }
};

}  // namespace millrace
