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
#include "models/qwen3_layer.h"

namespace millrace {
std::shared_ptr<const Model> make_qwen3(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader) {
  return std::make_shared<Decoder<Qwen3Layer>>(config, layers, weight_version, std::move(weights), reader);
}

}  // namespace millrace
