// AudioStem: the three convolutions before Qwen3-Omni's audio encoder, each of 3 x 3 taps with stride 2 and a border of
// zeros, followed by GELU: a chunk of frames in, an eighth as many rows out.
//
// A convolution is a product: each output position is a row with its 3 x 3 x channels inputs, and the rows go through
// Ops::linear in tiles. Inside, an image is [frames, bins, channels].
//
// Owner: the audio tower. Thread safety: immutable; convolve() from several threads, each with its own Ops and
// Workspace.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "formats/audio_config.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/omni/conv_weight.h"
#include "models/weight_reader.h"

namespace millrace {

inline constexpr int64_t kAudioTileRows = 256;  // of a product at one go

class AudioStem {
 public:
  // Reads "audio_tower.conv2d1.*" and so on. An error of packing is in status().
  AudioStem(const AudioConfig& config, WeightReader& reader, const LoadOptions& options);

  Status status() const;
  // Values of a row: channels * bins, channel after channel.
  int64_t row_width() const { return channels_ * bins_[3]; }

  // The activations of one chunk. One thread at a time.
  class Workspace {
   public:
    explicit Workspace(const AudioStem& stem);

   private:
    friend class AudioStem;
    std::array<Buffer, 4> images;  // the input and what each convolution makes of it
    Buffer taps;                   // a tile of inputs of a product
  };

  // The first `rows.count` rows of a chunk of `frames` rows (1 to kAudioChunkFrames), `mel` and zeros after it.
  // mel [at most `frames`, mel_bins], rows [at most frames / 8 rounded up, row_width()].
  void convolve(kernels::ConstRows mel, int64_t frames, kernels::Ops& ops, Workspace& workspace,
                kernels::Rows rows) const;

 private:
  struct Layer {
    int64_t inputs = 0;  // channels
    ConvWeight weight;
    TensorView bias;
  };
  Layer read_layer(int index, WeightReader& reader, const LoadOptions& options);
  void convolve_layer(const Layer& layer, int64_t frames, int64_t bins, const float* from, kernels::Ops& ops,
                      Buffer& taps, float* to) const;

  int64_t channels_ = 0;
  std::array<int64_t, 4> bins_{};  // before each convolution and after the last
  std::vector<Layer> layers_;
};

}  // namespace millrace
