#include "models/omni/code_transformer.h"

#include <algorithm>
#include <cmath>

#include "formats/tensor_names.h"
#include "models/rope.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Rows;

constexpr int64_t kPageSlots = 16;

}  // namespace

CodeTransformer::State::State(const Code2WavConfig& config) {
  const int64_t positions = config.sliding_window + kVocoderFramesAtOnce;
  shape_ = {.dtype = DType::kF32,
            .page_count = (positions + kPageSlots - 1) / kPageSlots + 1,
            .page_size = kPageSlots,
            .kv_heads = config.kv_heads,
            .head_dim = config.head_dim};
  shape_.page_stride_bytes = shape_.page_bytes();
  for (int i = 0; i < config.layers; ++i) {
    for (std::vector<Buffer>* cache : {&keys_, &values_}) {
      cache->emplace_back(static_cast<std::size_t>(shape_.page_count * shape_.page_bytes()));
    }
  }
}

kernels::KvLayer CodeTransformer::State::layer(std::size_t index) {
  kernels::KvLayer out = shape_;
  out.k = keys_[index].data();
  out.v = values_[index].data();
  return out;
}

void CodeTransformer::State::reach(int64_t end) {
  while (static_cast<int64_t>(pages_.size()) * kPageSlots < end) {
    pages_.push_back(static_cast<int32_t>(static_cast<int64_t>(pages_.size()) % shape_.page_count));
  }
}

CodeTransformer::CodeTransformer(const Code2WavConfig& config, WeightReader& reader)
    : config_(config), inverse_frequencies_(rope_inverse_frequencies({.theta = config.rope_theta}, config.head_dim)) {
  const std::string name(kCode2WavPrefix);
  embedding_ = reader.tensor(name + "code_embedding.weight",
                             {int64_t{config.quantizers} * config.codebook_size, config.hidden_size});
  for (int i = 0; i < config.layers; ++i) layers_.push_back(read_layer(reader, i));
  norm_ = reader.tensor(name + "pre_transformer.norm.weight", {config.hidden_size});
}

CodeTransformer::Layer CodeTransformer::read_layer(WeightReader& reader, int index) const {
  const std::string name = fmt::format("{}pre_transformer.layers.{}.", kCode2WavPrefix, index);
  const std::string attention = name + "self_attn.", inner = name + "mlp.";
  const int64_t hidden = config_.hidden_size, ffn = config_.intermediate_size;
  const int64_t q = int64_t{config_.heads} * config_.head_dim, kv = int64_t{config_.kv_heads} * config_.head_dim;
  const bool bias = config_.attention_bias;
  return {.attention_norm = reader.tensor(name + "input_layernorm.weight", {hidden}),
          .norm = reader.tensor(name + "post_attention_layernorm.weight", {hidden}),
          .q = reader.linear(attention + "q_proj", q, hidden, bias),
          .k = reader.linear(attention + "k_proj", kv, hidden, bias),
          .v = reader.linear(attention + "v_proj", kv, hidden, bias),
          .o = reader.linear(attention + "o_proj", hidden, q, bias),
          .gate = reader.linear(inner + "gate_proj", ffn, hidden, false),
          .up = reader.linear(inner + "up_proj", ffn, hidden, false),
          .down = reader.linear(inner + "down_proj", hidden, ffn, false),
          .attention_scale = reader.tensor(name + "self_attn_layer_scale.scale", {hidden}),
          .scale = reader.tensor(name + "mlp_layer_scale.scale", {hidden})};
}

TimeRows CodeTransformer::embed(std::span<const int32_t> codes, kernels::Ops& ops) const {
  const auto quantizers = static_cast<std::size_t>(config_.quantizers);
  std::vector<int32_t> ids(codes.begin(), codes.end());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] >= 0 && ids[i] < config_.codebook_size);
    ids[i] += static_cast<int32_t>(i % quantizers) * config_.codebook_size;
  }
  TimeRows each(static_cast<int64_t>(ids.size()), config_.hidden_size);
  ops.embedding(embedding_, ids, each.view());
  TimeRows out(each.rows / config_.quantizers, config_.hidden_size);
  for (int64_t row = 0; row < out.rows; ++row) {
    float* to = out.view().row(row);
    std::fill_n(to, out.width, 0.0f);
    for (int64_t quantizer = 0; quantizer < config_.quantizers; ++quantizer) {
      const float* from = each.view().row(row * config_.quantizers + quantizer);
      for (int64_t i = 0; i < out.width; ++i) to[i] += from[i];
    }
    for (int64_t i = 0; i < out.width; ++i) to[i] /= static_cast<float>(config_.quantizers);
  }
  return out;
}

void CodeTransformer::attend(const Layer& layer, std::size_t index, Rows x, ConstRows cos, ConstRows sin, State& state,
                             kernels::Ops& ops) const {
  const int64_t head = config_.head_dim;
  TimeRows q(x.count, config_.heads * head), k(x.count, config_.kv_heads * head), v(x.count, config_.kv_heads * head);
  ops.linear(kernels::normalized(x, layer.attention_norm, static_cast<float>(config_.rms_norm_eps)),
             {layer.q.into(q.view()), layer.k.into(k.view()), layer.v.into(v.view())});
  ops.rope(q.view(), head, cos, sin);
  ops.rope(k.view(), head, cos, sin);
  const kernels::KvLayer kv = state.layer(index);
  const kernels::AttentionSequence sequence{0, x.count, state.frames_, state.pages_};
  ops.kv_store(kv, {&sequence, 1}, k.view(), v.view());
  TimeRows attended(x.count, q.width), out(x.count, x.width);
  ops.attention(
      q.view(), kv, {&sequence, 1},
      {.heads = config_.heads, .scale = 1.0f / std::sqrt(static_cast<float>(head)), .window = config_.sliding_window},
      attended.view());
  layer.o(ops, attended.view(), out.view());
  ops.add_scaled(out.view(), layer.attention_scale, x);
}

void CodeTransformer::mlp(const Layer& layer, Rows x, kernels::Ops& ops) const {
  TimeRows gate(x.count, config_.intermediate_size), up(x.count, config_.intermediate_size), out(x.count, x.width);
  ops.linear(kernels::normalized(x, layer.norm, static_cast<float>(config_.rms_norm_eps)),
             {layer.gate.into(gate.view()), layer.up.into(up.view())});
  layer.down(ops, kernels::gated(gate.view(), up.view()), out.view());
  ops.add_scaled(out.view(), layer.scale, x);
}

TimeRows CodeTransformer::run(std::span<const int32_t> codes, State& state, kernels::Ops& ops) const {
  TimeRows x = embed(codes, ops);
  CHECK(x.rows >= 1 && x.rows <= kVocoderFramesAtOnce);
  CHECK(static_cast<int64_t>(codes.size()) == x.rows * config_.quantizers);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < x.rows; ++i) positions.push_back(static_cast<int32_t>(state.frames_ + i));
  state.reach(state.frames_ + x.rows);
  TimeRows cos(x.rows, config_.head_dim / 2), sin(x.rows, config_.head_dim / 2);
  ops.rope_table(positions, inverse_frequencies_, 1.0f, cos.view(), sin.view());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    attend(layers_[i], i, x.view(), cos.view(), sin.view(), state, ops);
    mlp(layers_[i], x.view(), ops);
  }
  state.frames_ += x.rows;
  ops.rms_norm(x.view(), norm_, static_cast<float>(config_.rms_norm_eps), x.view());
  return x;
}

}  // namespace millrace
