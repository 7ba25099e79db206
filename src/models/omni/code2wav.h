// Code2Wav: the vocoder of Qwen3-Omni (Xu et al., "Qwen3-Omni Technical Report", 2025): frames of codes in, samples of
// sound out.
//
//   x = transformer(codes)                            models/omni/code_transformer.h
//   for every upsampling ratio: x = convnext(transposed_conv(x))
//   x = conv(x)
//   for every upsampling rate:  x = transposed_conv(snake(x)), then three residual units
//   samples = clamp(conv(snake(x)))
//
// where convnext(x) = x + gamma * pw2(gelu(pw1(layer_norm(depthwise conv(x))))), and a unit with dilation 1, 3, 9 is
// x + conv(snake(dilated conv(snake(x)))).
//
// EXACT STREAMING. Every layer is causal, and a VocoderState keeps what each still needs of the frames so far. So the
// samples of a sound have the same bits however its frames are cut into calls; after n frames, config().samples(n) of
// them have been given. (transformers' chunked_decode computes chunks with 25 frames of context instead, which loses
// samples at the joints.)
//
// Owner: a worker. Thread safety: immutable; decode() from several threads, each with its own Ops and state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "formats/code2wav_config.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/omni/causal_layers.h"
#include "models/omni/code_transformer.h"
#include "models/weight_reader.h"

namespace millrace {

class Code2Wav;

// One sound on its way: made by Code2Wav::start(). One thread at a time.
class VocoderState {
 public:
  int64_t frames() const { return frames_; }

 private:
  friend class Code2Wav;
  explicit VocoderState(const Code2WavConfig& config) : transformer_(config) {}

  int64_t frames_ = 0;
  CodeTransformer::State transformer_;
  std::vector<RowHistory> histories_;  // of the layers, in their sequence
};

class Code2Wav {
 public:
  // Reads the tensors "code2wav.*" and no others. Errors: those of WeightStore::get; kInvalidArgument where the store
  // has some of them that the vocoder does not use; kUnsupported for a head_dim over kernels::kMaxHeadDim.
  static Result<std::shared_ptr<const Code2Wav>> load(const Code2WavConfig& config, std::shared_ptr<WeightStore> store,
                                                      const LoadOptions& options);

  const Code2WavConfig& config() const { return config_; }

  std::unique_ptr<VocoderState> start() const;

  // The next frames of a sound: `codes` [frames, config().quantizers], each in [0, config().codebook_size) (CHECK).
  // Appends the samples that they complete, in [-1, 1]. kCancelled where `keep_going`, which is asked between two
  // layers, returned false: the state is of no use then.
  Status decode(std::span<const int32_t> codes, VocoderState& state, kernels::Ops& ops, FunctionRef<bool()> keep_going,
                std::vector<float>& samples) const;

 private:
  struct Upsampling {
    TransposedConv transposed;
    TensorView depthwise_bias;
    std::vector<float> depthwise;  // [taps, channels]
    TensorView norm, norm_bias, gamma;
    Linear wide, narrow;
  };
  struct Unit {
    Snake before, between;
    CausalConv dilated, pointwise;
  };
  struct Block {
    Snake before;
    TransposedConv transposed;
    std::vector<Unit> units;
  };
  class Run;

  Code2Wav(const Code2WavConfig& config, std::shared_ptr<const WeightTable> weights, WeightReader& reader,
           const LoadOptions& options);
  Upsampling read_upsampling(WeightReader& reader, std::size_t index, const LoadOptions& options) const;
  Block read_block(WeightReader& reader, std::size_t index, const LoadOptions& options) const;
  Status packing_status() const;

  const Code2WavConfig config_;
  const std::shared_ptr<const WeightTable> weights_;  // keeps the bytes alive
  const CodeTransformer transformer_;
  std::vector<Upsampling> upsamplings_;
  CausalConv first_;
  std::vector<Block> blocks_;
  Snake before_last_;
  CausalConv last_;
};

}  // namespace millrace
