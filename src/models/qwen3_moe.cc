// Qwen3 with a mixture of experts (Yang et al., "Qwen3 Technical Report", 2025): Qwen3's attention, and instead of one
// MLP a layer many small ones, of which a router chooses a few for each token.
//
//   x = embed(tokens)
//   for every layer:
//     x += attention(x)                                          models/qwen3_attention.h
//     n = rms_norm(x)
//     p = softmax(router(n)); the k likeliest experts, their p divided by the sum of the k
//     x += sum over the chosen e, ascending: p[e] * down[e](silu(gate[e](n)) * up[e](n))
//   logits = lm_head(rms_norm(x))
//
// Rows that chose the same expert are multiplied together, and an expert that nobody chose is not read. A row meets its
// experts in ascending order whoever else is in the batch, so that the batch changes no bit. Layers without experts
// (config.has_experts) have Qwen3's MLP.
#include "kernels/routing.h"
#include "models/architectures.h"
#include "models/qwen3_attention.h"
#include "models/rope.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Ops;
using kernels::Rows;

struct Mlp {
  Linear gate, up, down;

  Mlp(const std::string& name, int64_t hidden, int64_t inner, WeightReader& reader)
      : gate(reader.linear(name + "gate_proj", inner, hidden, false)),
        up(reader.linear(name + "up_proj", inner, hidden, false)),
        down(reader.linear(name + "down_proj", hidden, inner, false)) {}
};

struct MoeLayer {
  Qwen3Attention attention;
  TensorView post_norm;
  Linear router;             // [experts, hidden]; empty where the layer has no experts
  std::vector<Mlp> experts;  // one where it has none

  MoeLayer(const ModelConfig& c, int index, WeightReader& reader)
      : attention(c, fmt::format("model.layers.{}.", index), reader) {
    const std::string layer = fmt::format("model.layers.{}.", index), mlp = layer + "mlp.";
    post_norm = reader.tensor(layer + "post_attention_layernorm.weight", {c.hidden_size});
    if (!c.has_experts(index)) {
      experts.emplace_back(mlp, c.hidden_size, c.intermediate_size, reader);
      return;
    }
    // As the file holds it: a router that is rounded sends tokens to other experts.
    router.weight = reader.tensor(mlp + "gate.weight", {c.num_experts, c.hidden_size});
    for (int e = 0; e < c.num_experts; ++e) {
      experts.emplace_back(fmt::format("{}experts.{}.", mlp, e), c.hidden_size, c.moe_intermediate_size, reader);
    }
  }
};

class Qwen3Moe final : public Model {
 public:
  Qwen3Moe(const ModelConfig& c, LayerRange range, uint64_t version, std::shared_ptr<const WeightTable> weights,
           WeightReader& reader)
      : Model(c, range, version, std::move(weights)),
        epsilon_(static_cast<float>(c.rms_norm_eps)),
        inv_freq_(rope_inverse_frequencies(c.rope, c.head_dim)) {
    embedding_ = reader.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
    for (int i = 0; i < c.layers; ++i) {
      const bool own = i >= range.begin && i < range.end;
      reader.check_only(!own);
      MoeLayer layer(c, i, reader);
      if (own) own_layers_.push_back(std::move(layer));
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
      const MoeLayer& layer = own_layers_[i];
      layer.attention.add_to(x, layers_.begin + static_cast<int>(i), config_, step, step.kv[i], cos, sin, ws, ops);
      const Rows n = ws.normed(x.count);
      ops.rms_norm(x, layer.post_norm, epsilon_, n);
      layer.router.weight.empty() ? dense(layer.experts[0], n, x, ws, ops) : sparse(layer, n, x, ws, ops);
    }
  }

  void head(ConstRows x, Rows logits, Ops& ops) const override {
    CHECK(layers_.end == config_.layers);
    ops.linear(normalized(x, norm_, epsilon_), head_, logits);
  }

 private:
  void dense(const Mlp& mlp, ConstRows n, Rows x, Workspace& ws, Ops& ops) const {
    const Rows gate = ws.gate(n.count), up = ws.up(n.count);
    ops.linear(n, {mlp.gate.into(gate), mlp.up.into(up)});
    mlp.down.add_to(ops, gated(gate, up), x);
  }

  void sparse(const MoeLayer& layer, ConstRows n, Rows x, Workspace& ws, Ops& ops) const {
    ExpertWorkspace& experts = ws.experts();
    const Rows logits = experts.logits(n.count);
    layer.router(ops, n, logits);
    experts.group(logits, config_.experts_per_token, config_.norm_topk_prob);
    for (std::size_t e = 0; e < layer.experts.size(); ++e) {
      const ExpertGroup group = experts.rows_of(e);
      const auto count = static_cast<int64_t>(group.rows.size());
      if (count == 0) continue;
      const Mlp& mlp = layer.experts[e];
      const Rows in = experts.in(count), gate = experts.gate(count), up = experts.up(count);
      kernels::gather_rows(n, group.rows, in);
      ops.linear(in, {mlp.gate.into(gate), mlp.up.into(up)});
      const Rows out = experts.out(count);
      mlp.down(ops, gated(gate, up), out);
      kernels::scatter_add(out, group.rows, group.weights, x);
    }
  }

  const float epsilon_;
  const std::vector<float> inv_freq_;
  kernels::Weight embedding_, head_;
  TensorView norm_;
  std::vector<MoeLayer> own_layers_;
};

}  // namespace

std::shared_ptr<const Model> make_qwen3_moe(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                            std::shared_ptr<const WeightTable> weights, WeightReader& reader) {
  return std::make_shared<Qwen3Moe>(config, layers, weight_version, std::move(weights), reader);
}

}  // namespace millrace
