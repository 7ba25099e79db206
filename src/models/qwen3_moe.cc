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
// The talker of Qwen3-Omni has one more expert that every row goes to: x += sigmoid(shared_gate(n)) * shared(n), last.
//
// Rows that chose the same expert are multiplied together, and an expert that no row chose is not read. A row meets its
// experts in ascending order whichever other rows are in the batch, so that the batch changes no bit. Layers without
// experts (config.has_experts) have Qwen3's MLP.
#include <optional>

#include "kernels/routing.h"
#include "models/architectures.h"
#include "models/decoder.h"
#include "models/qwen3_attention.h"

namespace millrace {
namespace {

using kernels::ConstRows;
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
  std::optional<Mlp> shared;
  Linear shared_gate;  // [1, hidden]

  MoeLayer(const ModelConfig& c, int index, WeightReader& reader)
      : attention(c, fmt::format("model.layers.{}.", index), reader) {
    const std::string layer = fmt::format("model.layers.{}.", index), inner = layer + "mlp.";
    post_norm = reader.tensor(layer + "post_attention_layernorm.weight", {c.hidden_size});
    if (!c.has_experts(index)) {
      experts.emplace_back(inner, c.hidden_size, c.intermediate_size, reader);
      return;
    }
    // As the file holds it: a router that is rounded sends tokens to other experts.
    router.weight = reader.tensor(inner + "gate.weight", {c.num_experts, c.hidden_size});
    for (int e = 0; e < c.num_experts; ++e) {
      experts.emplace_back(fmt::format("{}experts.{}.", inner, e), c.hidden_size, c.moe_intermediate_size, reader);
    }
    if (c.shared_expert_size == 0) return;
    shared.emplace(inner + "shared_expert.", c.hidden_size, c.shared_expert_size, reader);
    shared_gate.weight = reader.tensor(inner + "shared_expert_gate.weight", {1, c.hidden_size});
  }

  void attend(const LayerCall& call) const { attention.add_to(call); }

  void mlp(const LayerCall& call) const {
    const Rows n = call.ws.normed(call.x.count);
    call.ops.rms_norm(call.x, post_norm, call.epsilon(), n);
    router.weight.empty() ? dense(call, n) : sparse(call, n);
  }

 private:
  void dense(const LayerCall& call, ConstRows n) const {
    const Rows gate = call.ws.gate(n.count), up = call.ws.up(n.count);
    call.ops.linear(n, {experts[0].gate.into(gate), experts[0].up.into(up)});
    experts[0].down.add_to(call.ops, gated(gate, up), call.x);
  }

  void add_shared(const LayerCall& call, ConstRows n) const {
    ExpertWorkspace& ws = call.ws.experts();
    const Rows gate = ws.shared_gate(n.count), up = ws.shared_up(n.count), out = ws.out(n.count);
    call.ops.linear(n, {shared->gate.into(gate), shared->up.into(up)});
    shared->down(call.ops, gated(gate, up), out);
    const Rows logits = ws.logits(n.count).columns(0, 1);
    shared_gate(call.ops, n, logits);
    const ExpertGroup all = ws.all_rows(logits);
    kernels::scatter_add(out, all.rows, all.weights, call.x);
  }

  void sparse(const LayerCall& call, ConstRows n) const {
    ExpertWorkspace& ws = call.ws.experts();
    const Rows logits = ws.logits(n.count);
    router(call.ops, n, logits);
    ws.group(logits, call.config.experts_per_token, call.config.norm_topk_prob);
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const ExpertGroup group = ws.rows_of(e);
      const auto count = static_cast<int64_t>(group.rows.size());
      if (count == 0) continue;
      const Rows in = ws.in(count), gate = ws.gate(count), up = ws.up(count);
      kernels::gather_rows(n, group.rows, in);
      call.ops.linear(in, {experts[e].gate.into(gate), experts[e].up.into(up)});
      const Rows out = ws.out(count);
      experts[e].down(call.ops, gated(gate, up), out);
      kernels::scatter_add(out, group.rows, group.weights, call.x);
    }
    if (shared) add_shared(call, n);
  }
};

}  // namespace

std::shared_ptr<const Model> make_qwen3_moe(const ModelConfig& config, LayerRange layers, uint64_t weight_version,
                                            std::shared_ptr<const WeightTable> weights, WeightReader& reader) {
  return std::make_shared<Decoder<MoeLayer>>(config, layers, weight_version, std::move(weights), reader);
}

}  // namespace millrace
