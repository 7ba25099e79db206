#include "models/omni/audio_stem.h"

#include <algorithm>

#include "formats/tensor_names.h"
#include "models/omni/audio_rows.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Rows;

constexpr int kLayers = 3;
constexpr int64_t kTaps = 3;  // along each axis

// The inputs of the output position (frame, bin): to [3, 3, channels], zeros outside of the image.
void fill_taps(const float* image, int64_t frames, int64_t bins, int64_t channels, int64_t frame, int64_t bin,
               float* to) {
  for (int64_t f = 2 * frame - 1; f <= 2 * frame + 1; ++f) {
    for (int64_t b = 2 * bin - 1; b <= 2 * bin + 1; ++b, to += channels) {
      if (f < 0 || f >= frames || b < 0 || b >= bins) {
        std::fill_n(to, channels, 0.0f);
      } else {
        std::copy_n(image + (f * bins + b) * channels, channels, to);
      }
    }
  }
}

}  // namespace

AudioStem::AudioStem(const AudioConfig& config, WeightReader& reader, const LoadOptions& options)
    : channels_(config.downsample_hidden_size), bins_{config.mel_bins} {
  for (std::size_t i = 1; i < bins_.size(); ++i) bins_[i] = conv_extent(bins_[i - 1]);
  for (int i = 0; i < kLayers; ++i) layers_.push_back(read_layer(i, reader, options));
}

// Weights come as [outputs, inputs, bins, frames]; a row of `taps` has the inputs of one tap next to each other, so
// that filling it copies runs: [outputs, frames, bins, inputs].
AudioStem::Layer AudioStem::read_layer(int index, WeightReader& reader, const LoadOptions& options) {
  const std::string name = fmt::format("{}conv2d{}.", kAudioPrefix, index + 1);
  const int64_t inputs = index == 0 ? 1 : channels_;
  const auto source = [inputs](int64_t output, int64_t column) {
    const int64_t input = column % inputs, bin = column / inputs % kTaps, frame = column / inputs / kTaps;
    return ((output * inputs + input) * kTaps + bin) * kTaps + frame;
  };
  return {.inputs = inputs,
          .weight = ConvWeight(reader, name + "weight", {channels_, inputs, kTaps, kTaps}, channels_,
                               kTaps * kTaps * inputs, source, options),
          .bias = reader.tensor(name + "bias", {channels_})};
}

Status AudioStem::status() const {
  for (const Layer& layer : layers_) RETURN_IF_ERROR(layer.weight.status());
  return ok_status();
}

AudioStem::Workspace::Workspace(const AudioStem& stem)
    : taps(float_buffer(kAudioTileRows, kTaps * kTaps * stem.channels_)) {
  int64_t frames = kAudioChunkFrames;
  for (std::size_t i = 0; i < images.size(); ++i) {
    images[i] = float_buffer(frames * stem.bins_[i], i == 0 ? 1 : stem.channels_);
    frames = conv_extent(frames);
  }
}

void AudioStem::convolve_layer(const Layer& layer, int64_t frames, int64_t bins, const float* from, kernels::Ops& ops,
                               Buffer& taps, float* to) const {
  const int64_t out_bins = conv_extent(bins), count = conv_extent(frames) * out_bins;
  for (int64_t first = 0; first < count; first += kAudioTileRows) {
    const int64_t n = std::min(kAudioTileRows, count - first);
    const Rows inputs(taps.as<float>().data(), n, kTaps * kTaps * layer.inputs);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t position = first + i;
      fill_taps(from, frames, bins, layer.inputs, position / out_bins, position % out_bins, inputs.row(i));
    }
    const Rows outputs(to + first * channels_, n, channels_);
    ops.linear(inputs, layer.weight.weight(), outputs, {.bias = layer.bias});
    ops.gelu(outputs, false, outputs);
  }
}

void AudioStem::convolve(ConstRows mel, int64_t frames, kernels::Ops& ops, Workspace& workspace, Rows rows) const {
  CHECK(mel.count >= 1 && mel.count <= frames && frames <= kAudioChunkFrames && mel.width == bins_[0]);
  CHECK(rows.width == row_width());
  float* image = workspace.images[0].as<float>().data();
  for (int64_t i = 0; i < mel.count; ++i) std::copy_n(mel.row(i), mel.width, image + i * mel.width);
  std::fill_n(image + mel.count * mel.width, (frames - mel.count) * mel.width, 0.0f);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    float* next = workspace.images[i + 1].as<float>().data();
    convolve_layer(layers_[i], frames, bins_[i], image, ops, workspace.taps, next);
    frames = conv_extent(frames);
    image = next;
  }
  CHECK(rows.count <= frames);
  for (int64_t row = 0; row < rows.count; ++row) {
    for (int64_t bin = 0; bin < bins_[3]; ++bin, image += channels_) {
      for (int64_t channel = 0; channel < channels_; ++channel)
        rows.row(row)[channel * bins_[3] + bin] = image[channel];
    }
  }
}

}  // namespace millrace
