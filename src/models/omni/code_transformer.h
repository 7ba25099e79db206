// CodeTransformer: the part of Qwen3-Omni's vocoder that sees codes: a small causal transformer over the mean of the
// embeddings of each frame's codes.
//
//   x = mean over the codebooks of embedding[codebook][code]
//   for every layer:
//     q, k, v = projections of rms_norm(x);  q, k turned by RoPE
//     x += scale_1 * o_proj(attention(q, k, v))         each frame sees those of a sliding window
//     x += scale_2 * down(silu(gate(n)) * up(n)),  n = rms_norm(x)
//   rows = rms_norm(x)
//
// The keys and values of a sound lie in a ring of pages that is as long as the window and one call.
//
// Owner: a vocoder. Thread safety: immutable; run() from several threads, each with its own Ops and State.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/code2wav_config.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/omni/causal_layers.h"
#include "models/weight_reader.h"

namespace millrace {

inline constexpr int64_t kVocoderFramesAtOnce = 8;  // of a call; any number gives the same bits

class CodeTransformer {
 public:
  // Reads "code2wav.code_embedding.*" and "code2wav.pre_transformer.*".
  CodeTransformer(const Code2WavConfig& config, WeightReader& reader);

  // What the frames of one sound left behind. One thread at a time.
  class State {
   public:
    explicit State(const Code2WavConfig& config);

   private:
    friend class CodeTransformer;
    kernels::KvLayer layer(std::size_t index);
    // The frames to come have pages up to position `end`.
    void reach(int64_t end);

    int64_t frames_ = 0;  // so far
    kernels::KvLayer shape_;
    std::vector<int32_t> pages_;  // of all positions from 0 on, though the ring holds the last ones alone
    std::vector<Buffer> keys_, values_;
  };

  // `codes` [frames, quantizers], frames <= kVocoderFramesAtOnce, each in [0, codebook_size) (CHECK).
  TimeRows run(std::span<const int32_t> codes, State& state, kernels::Ops& ops) const;

 private:
  struct Layer {
    TensorView attention_norm, norm;
    Linear q, k, v, o, gate, up, down;
    TensorView attention_scale, scale;
  };
  Layer read_layer(WeightReader& reader, int index) const;
  TimeRows embed(std::span<const int32_t> codes, kernels::Ops& ops) const;
  void attend(const Layer& layer, std::size_t index, kernels::Rows x, kernels::ConstRows cos, kernels::ConstRows sin,
              State& state, kernels::Ops& ops) const;
  void mlp(const Layer& layer, kernels::Rows x, kernels::Ops& ops) const;

  const Code2WavConfig config_;
  const std::vector<float> inverse_frequencies_;
  TensorView embedding_;  // [quantizers * codebook_size, hidden_size]
  std::vector<Layer> layers_;
  TensorView norm_;
};

}  // namespace millrace
