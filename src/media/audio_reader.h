// The frames of an audio file in memory, block by block, mixed down to mono: a decoder behind the checks of
// audio_container.h. For this folder alone.
//
// Owner: the function that decodes; one thread. The bytes must outlive it. It holds one block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "media/audio.h"
#include "media/audio_container.h"
#include "media/audio_source.h"

namespace millrace::audio {

class AudioReader {
 public:
  // All checks that the header allows, the limits of the length included where it states one.
  static Result<AudioReader> open(std::span<const uint8_t> bytes, const AudioLimits& limits);

  int rate() const { return static_cast<int>(source_->rate()); }
  int channels() const { return static_cast<int>(source_->channels()); }
  // What the header states and open() checked; none where only the decoder can count.
  std::optional<int64_t> frames() const { return frames_; }

  // The next frames, as the mean of their channels; empty at the end, when all stated frames have come. The span is
  // valid until the next call.
  Result<std::span<const float>> read();

 private:
  AudioReader() = default;
  Status open_source(std::span<const uint8_t> bytes);
  Result<std::size_t> read_block();
  Status check_block(std::span<const float> values) const;

  AudioLimits limits_;
  Container container_ = Container::kWav;
  std::unique_ptr<AudioSource> source_;
  std::optional<int64_t> frames_;
  int64_t read_ = 0;
  std::vector<float> block_;
};

}  // namespace millrace::audio
