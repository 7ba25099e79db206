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
#include "models/qwen3_attention.h"
#include "models/rope.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Ops;
using kernels::Rows;

struct Qwen3Layer {
  Qwen3Attention attention;
  TensorView post_norm;
  Linear gate, up, down;

  Qwen3Layer(const ModelConfig& c, int index, WeightReader& reader)
      : attention(c, fmt::format("model.layers.{}.", index), reader) {
    const std::string layer = fmt::format("model.layers.{}.", index), mlp = layer + "mlp.";
    post_norm = reader.tensor(layer + "post_attention_layernorm.weight", {c.hidden_size});
    gate = reader.linear(mlp + "gate_proj", c.intermediate_size, c.hidden_size, false);
    up = reader.linear(mlp + "up_proj", c.intermediate_size, c.hidden_size, false);
    down = reader.linear(mlp + "down_proj", c.hidden_size, c.intermediate_size, false);
  }
};

class Qwen3 final : public Model {
 public:
  Qwen3(const ModelConfig& c, LayerRange range, uint64_t version, std::shared_ptr<const WeightTable> weights,
        WeightReader& reader)
      : Model(c, range, version, std::move(weights)),
        epsilon_(static_cast<float>(c.rms_norm_eps)),
        inv_freq_(rope_inverse_frequencies(c.rope, c.head_dim)) {
    embedding_ = reader.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
    for (int i = 0; i < c.layers; ++i) {
      const bool own = i >= range.begin && i < range.end;
      reader.check_only(!own);
      const Qwen3Layer layer(c, i, reader);
      if (own) own_layers_.push_back(layer);
    }
    reader.check_only(false);
    norm_ = reader.tensor("model.norm.weight", {c.hidden_size});
    head_ = c.tie_word_embeddings ? embedding_ : reader.matrix("lm_head.weight", c.vocab_size, c.hidden_size);
  }

  void embed(std::span<const int32_t> tokens, Rows hidden, Ops& ops) const override {
    CHECK(layers_.begin == 0);
    ops.embedding(embedding_, tokens, hidden);
  }

  void forward(const Step& step, Rows x, Workspace& ws, Ops& ops) const override {
    CHECK(step.kv.size() == own_layers_.size());
    const Rows cos = ws.cos(x.count), sin = ws.sin(x.count);
    ops.rope_table(step.positions, inv_freq_, static_cast<float>(config_.rope.attention_factor), cos, sin);
    for (std::size_t i = 0; i < own_layers_.size(); ++i) {
      own_layers_[i].attention.add_to(x, layers_.begin + static_cast<int>(i), config_, step, step.kv[i], cos, sin, ws,
                                      ops);
      mlp(own_layers_[i], x, ws, ops);
    }
  }

  void head(ConstRows x, Rows logits, Ops& ops) const override {
    CHECK(layers_.end == config_.layers);
    ops.linear(normalized(x, norm_, epsilon_), head_, logits);
  }

 private:
  void mlp(const Qwen3Layer& layer, Rows x, Workspace& ws, Ops& ops) const {
    const Rows gate = ws.gate(x.count), up = ws.up(x.count);
    ops.linear(normalized(x, layer.post_norm, epsilon_), {layer.gate.into(gate), layer.up.into(up)});
    layer.down.add_to(ops, gated(gate, up), x);
  }

  const float epsilon_;
  const std::vector<float> inv_freq_;
  kernels::Weight embedding_, head_;
  TensorView norm_;
  std::vector<Qwen3Layer> own_layers_;
};

}  // namespace

std::shared_ptr<const Model> make_qwen3(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader) {
  return std::make_shared<Qwen3>(config, layers, weight_version, std::move(weights), reader);
}

}  // namespace millrace
