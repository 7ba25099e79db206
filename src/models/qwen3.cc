// Qwen3 dense (Yang et al., "Qwen3 Technical Report", 2025): Qwen2 without the biases and with an RMSNorm over each
// head's query and key before the rotation. heads * head_dim may differ from the hidden size.
//
//   x = embed(tokens)
//   for every layer:
//     n = rms_norm(x)
//     q, k, v = rope(head_norm(q_proj(n))), rope(head_norm(k_proj(n))), v_proj(n)
//     x += o_proj(attention(q, k, v))
//     n = rms_norm(x)
//     x += down_proj(silu(gate_proj(n)) * up_proj(n))
//   logits = lm_head(rms_norm(x))
#include "models/architectures.h"
#include "models/decoder.h"
#include "models/qwen3_attention.h"

namespace millrace {
namespace {

using kernels::Rows;

struct Qwen3Layer {
  Qwen3Attention attention;
  TensorView post_norm;
  Linear gate, up, down;

  Qwen3Layer(const ModelConfig& c, int index, WeightReader& reader)
      : attention(c, fmt::format("model.layers.{}.", index), reader) {
    const std::string layer = fmt::format("model.layers.{}.", index), inner = layer + "mlp.";
    post_norm = reader.tensor(layer + "post_attention_layernorm.weight", {c.hidden_size});
    gate = reader.linear(inner + "gate_proj", c.intermediate_size, c.hidden_size, false);
    up = reader.linear(inner + "up_proj", c.intermediate_size, c.hidden_size, false);
    down = reader.linear(inner + "down_proj", c.hidden_size, c.intermediate_size, false);
  }

  void attend(const LayerCall& call) const { attention.add_to(call); }

  void mlp(const LayerCall& call) const {
    const Rows gate_rows = call.ws.gate(call.x.count), up_rows = call.ws.up(call.x.count);
    call.ops.linear(normalized(call.x, post_norm, call.epsilon()), {gate.into(gate_rows), up.into(up_rows)});
    down.add_to(call.ops, gated(gate_rows, up_rows), call.x);
  }
};

}  // namespace

std::shared_ptr<const Model> make_qwen3(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader) {
  return std::make_shared<Decoder<Qwen3Layer>>(config, layers, weight_version, std::move(weights), reader);
}

}  // namespace millrace
