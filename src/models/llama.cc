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
#include "models/rope.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Ops;
using kernels::Rows;

struct LlamaLayer {
  TensorView input_norm, post_norm;
  Linear q, k, v, o;
  Linear gate, up, down;

  LlamaLayer(const ModelConfig& c, int index, WeightReader& reader) {
    const std::string layer = fmt::format("model.layers.{}.", index);
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    input_norm = reader.tensor(layer + "input_layernorm.weight", {c.hidden_size});
    q = reader.linear(attention + "q_proj", c.q_size(), c.hidden_size, c.qkv_bias);
    k = reader.linear(attention + "k_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    v = reader.linear(attention + "v_proj", c.kv_size(), c.hidden_size, c.qkv_bias);
    o = reader.linear(attention + "o_proj", c.hidden_size, c.q_size(), c.o_proj_bias);
    post_norm = reader.tensor(layer + "post_attention_layernorm.weight", {c.hidden_size});
    gate = reader.linear(mlp + "gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    up = reader.linear(mlp + "up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
    down = reader.linear(mlp + "down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
  }
};

class Llama final : public Model {
 public:
  Llama(const ModelConfig& c, LayerRange range, uint64_t version, std::shared_ptr<const WeightTable> weights,
        WeightReader& reader)
      : Model(c, range, version, std::move(weights)),
        epsilon_(static_cast<float>(c.rms_norm_eps)),
        inv_freq_(rope_inverse_frequencies(c.rope, c.head_dim)) {
    embedding_ = reader.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
    for (int i = 0; i < c.layers; ++i) {
      const bool own = i >= range.begin && i < range.end;
      reader.check_only(!own);
      const LlamaLayer layer(c, i, reader);
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
      attention(static_cast<int>(i), step, x, cos, sin, ws, ops);
      mlp(own_layers_[i], x, ws, ops);
    }
  }

  void head(ConstRows x, Rows logits, Ops& ops) const override {
    CHECK(layers_.end == config_.layers);
    ops.linear(normalized(x, norm_, epsilon_), head_, logits);
  }

 private:
  void attention(int i, const Step& step, Rows x, ConstRows cos, ConstRows sin, Workspace& ws, Ops& ops) const {
    const LlamaLayer& layer = own_layers_[static_cast<std::size_t>(i)];
    const kernels::KvLayer& kv = step.kv[static_cast<std::size_t>(i)];
    const Rows q = ws.q(x.count), k = ws.k(x.count), v = ws.v(x.count);
    ops.linear(normalized(x, layer.input_norm, epsilon_), {layer.q.into(q), layer.k.into(k), layer.v.into(v)});
    ops.rope(q, config_.head_dim, cos, sin);
    ops.rope(k, config_.head_dim, cos, sin);
    ops.kv_store(kv, step.sequences, k, v);
    const Rows attended = ws.attended(x.count);
    ops.attention(q, kv, step.sequences,
                  {.heads = config_.heads,
                   .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                   .window = config_.layer_window[static_cast<std::size_t>(layers_.begin + i)]},
                  attended);
    layer.o.add_to(ops, attended, x);
  }

  void mlp(const LlamaLayer& layer, Rows x, Workspace& ws, Ops& ops) const {
    const Rows gate = ws.gate(x.count), up = ws.up(x.count);
    ops.linear(normalized(x, layer.post_norm, epsilon_), {layer.gate.into(gate), layer.up.into(up)});
    layer.down.add_to(ops, gated(gate, up), x);
  }

  const float epsilon_;
  const std::vector<float> inv_freq_;
  kernels::Weight embedding_, head_;
  TensorView norm_;
  std::vector<LlamaLayer> own_layers_;
};

}  // namespace

std::shared_ptr<const Model> make_llama(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                        std::shared_ptr<const WeightTable> weights, WeightReader& reader) {
  return std::make_shared<Llama>(config, layers, weight_version, std::move(weights), reader);
}

}  // namespace millrace
