// Where the samples of a WAV file lie, and what they are. For this folder alone.
//
// The chunks are read here and not by libsndfile, which fails for some that are legal and takes what is left where the
// header states more: its decoder is given the samples alone.
//
// Thread safety: values; a free function without state.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "media/audio.h"

namespace millrace::audio {

struct WavLayout {
  enum class Encoding : uint8_t { kPcm = 1, kFloat = 3, kAlaw = 6, kUlaw = 7 };  // as the chunk fmt has them

  Encoding encoding = Encoding::kPcm;
  int bits = 16;
  int channels = 1;
  int rate = 16000;
  std::span<const uint8_t> samples;  // complete frames, at least one
};

// Of a file that begins as a WAV. kInvalidArgument, kTooLarge, kUnsupported: as read_audio_info.
Result<WavLayout> read_wav_layout(std::span<const uint8_t> bytes, const AudioLimits& limits);

}  // namespace millrace::audio
