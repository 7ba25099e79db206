// Decoder: what the architectures of this folder have in common: embedding, a loop over layers, final norm and head.
//
//   x = embed(tokens)
//   for every layer of the range:  layer.attend(x);  layer.mlp(x);  captures of x;  x += the step's additions
//   logits = head(rms_norm(x))
//
// An architecture is its layer: a struct with a constructor that reads its weights, attend() and mlp(). Which range
// holds which tensors is decided here: a range reads those of its own layers alone, and the first range the embedding,
// the final norm and the head too.
//
// Thread safety: that of Model: const after it was made.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/rope_table.h"
#include "models/model.h"
#include "models/rope.h"
#include "models/weight_reader.h"

namespace millrace {

// What one layer computes with: it changes x in place.
struct LayerCall {
  const ModelConfig& config;
  int index = 0;  // of the layer in the whole model
  const Step& step;
  const kernels::KvLayer& kv;
  kernels::Rows x;
  kernels::ConstRows cos, sin;
  Workspace& ws;
  kernels::Ops& ops;

  float epsilon() const { return static_cast<float>(config.rms_norm_eps); }
};

// Layer(config, index, reader) reads the weights; attend(call) adds the attention to x and stores the rows' keys and
// values; mlp(call) adds the rest of the layer.
template <typename Layer>
class Decoder final : public Model {
 public:
  Decoder(const ModelConfig& config, LayerRange range, uint64_t version, std::shared_ptr<const WeightTable> weights,
          WeightReader& reader)
      : Model(config, range, version, std::move(weights)),
        inv_freq_(rope_inverse_frequencies(config.rope, config.head_dim)) {
    for (int i = 0; i < config.head_dim / 2; ++i) axes_.push_back(static_cast<uint8_t>(config.rope.axis_of(i)));
    const bool first = range.begin == 0;
    if (first) embedding_ = reader.matrix(kEmbeddingName, config.vocab_size, config.hidden_size);
    range_layers_.reserve(static_cast<std::size_t>(range.count()));
    for (int i = range.begin; i < range.end; ++i) range_layers_.emplace_back(config, i, reader);
    if (!first) return;
    norm_ = reader.tensor(kFinalNormName, {config.hidden_size});
    head_ = config.tie_word_embeddings ? embedding_ : reader.matrix(kHeadName, config.vocab_size, config.hidden_size);
  }

  void embed(std::span<const int32_t> tokens, kernels::Rows hidden, kernels::Ops& ops) const override {
    CHECK(layers_.begin == 0);
    ops.embedding(embedding_, tokens, hidden);
  }

  void forward(const Step& step, kernels::Rows x, Workspace& ws, kernels::Ops& ops) const override {
    CHECK(step.kv.size() == range_layers_.size());
    const kernels::Rows cos = ws.cos(x.count), sin = ws.sin(x.count);
    const auto factor = static_cast<float>(config_.rope.attention_factor);
    if (step.positions3.empty()) {
      ops.rope_table(step.positions, inv_freq_, factor, cos, sin);
    } else {
      CHECK(static_cast<int64_t>(step.positions3.size()) == x.count);
      kernels::fill_rope_table(step.positions3, axes_, inv_freq_, factor, cos, sin);
    }
    for (std::size_t i = 0; i < range_layers_.size(); ++i) {
      const LayerCall call{config_, layers_.begin + static_cast<int>(i), step, step.kv[i], x, cos, sin, ws, ops};
      range_layers_[i].attend(call);
      if (step.on_stored != nullptr) (*step.on_stored)(static_cast<int>(i) + 1);
      range_layers_[i].mlp(call);
      for (const CapturedRow& captured : step.captures) {
        if (captured.layer == call.index + 1) std::copy_n(x.row(captured.row), x.width, captured.to);
      }
      for (const RowAddition& addition : step.additions) {
        if (addition.layer == call.index) add(addition.features, x, addition.row);
      }
    }
  }

  void final_norm(kernels::ConstRows x, kernels::Rows normed, kernels::Ops& ops) const override {
    CHECK(layers_.begin == 0);
    ops.rms_norm(x, norm_, static_cast<float>(config_.rms_norm_eps), normed);
  }

  void head(kernels::ConstRows x, kernels::Rows logits, kernels::Ops& ops) const override {
    CHECK(layers_.begin == 0);
    ops.linear(kernels::normalized(x, norm_, static_cast<float>(config_.rms_norm_eps)), head_, logits);
  }

 private:
  static void add(const float* features, kernels::Rows x, int64_t row) {
    float* to = x.row(row);
    for (int64_t i = 0; i < x.width; ++i) to[i] += features[i];
  }

  const std::vector<float> inv_freq_;
  std::vector<uint8_t> axes_;  // of each frequency
  kernels::Weight embedding_, head_;
  TensorView norm_;
  std::vector<Layer> range_layers_;
};

}  // namespace millrace
