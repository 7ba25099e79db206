// AudioTower: the audio encoder of Qwen3-Omni's thinker (Xu et al., "Qwen3-Omni Technical Report", 2025): the log-mel
// spectrogram of one sound in, rows of the language model's width out.
//
//   for every chunk of 100 frames: three convolutions (models/omni/audio_stem.h)
//   x = conv_out(rows) + sinusoidal positions, which begin again in every chunk
//   for every layer:
//     q, k, v = projections of layer_norm(x)
//     x += out_proj(attention(q, k, v))      each row sees all rows of its window of n_window_infer frames
//     x += fc2(gelu(fc1(layer_norm(x))))
//   features = proj2(gelu(proj1(layer_norm(x))))
//
// The features of a sound depend on its frames alone. transformers' depend on its company in two ways, of which a batch
// of one is followed: the last chunk of a sound is filled with zeros up to the longest chunk (here: 100 frames, or all
// of a sound that is shorter), and where all sounds are shorter than a chunk, the window is a multiple of the longest.
//
// Owner: the encoder. Thread safety: immutable; encode() from several threads, each with its own Ops.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "formats/audio_config.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/omni/audio_rows.h"
#include "models/omni/audio_stem.h"
#include "models/weight_reader.h"

namespace millrace {

class AudioTower {
 public:
  // Reads the tensors "audio_tower.*" and no others. Errors: those of WeightStore::get; kInvalidArgument where the
  // store has some of them that the tower does not use; kUnsupported for a head_dim over kernels::kMaxHeadDim.
  static Result<std::shared_ptr<const AudioTower>> load(const AudioConfig& config, std::shared_ptr<WeightStore> store,
                                                        const LoadOptions& options);

  const AudioConfig& config() const { return config_; }

  // `mel` [frames, config().mel_bins], frames >= 1 (CHECK). `features` becomes [audio_rows(frames),
  // config().output_dim]. kCancelled where `keep_going` returned false; it is asked between two products.
  Status encode(int64_t frames, std::span<const float> mel, kernels::Ops& ops, FunctionRef<bool()> keep_going,
                std::vector<float>& features) const;

 private:
  struct Norm {
    TensorView weight, bias;
  };
  struct Layer {
    Norm attention_norm, norm;
    Linear q, k, v, out, fc1, fc2;
  };
  class Run;

  AudioTower(const AudioConfig& config, std::shared_ptr<const WeightTable> weights, WeightReader& reader,
             const LoadOptions& options);
  Norm read_norm(WeightReader& reader, const std::string& name) const;
  Layer read_layer(WeightReader& reader, int index) const;

  const AudioConfig config_;
  const std::shared_ptr<const WeightTable> weights_;  // keeps the bytes alive
  const AudioStem stem_;
  Linear conv_out_;
  std::vector<float> positions_;  // [kAudioChunkRows, d_model]
  std::vector<Layer> layers_;
  Norm post_norm_;
  Linear proj1_, proj2_;
};

}  // namespace millrace
