// Speech from bytes to samples: WAV, FLAC, Ogg Vorbis, Ogg Opus and MP3 to mono 32-bit floats at 16 kHz.
//
// Decoded by libsndfile, as Python's soundfile does; Vorbis, Opus (always at 48 kHz) and MP3 by the libraries of those
// formats. Integers are scaled to [-1, 1), floats are taken as they are. Then what librosa.load(sr=16000) does, which
// the published processors of speech models call: the mean of the channels in f32, and soxr's HQ filter (pass band to
// 0.91 of the lower rate's half, the stop band below -120 dB). A file of 16 kHz passes unchanged, bit for bit.
//
// WAV: PCM of 8 (unsigned), 16, 24 and 32 bits, float of 32 and 64 bits, A-law and u-law. Both of its sizes may be
// 0xFFFFFFFF, as programs write that do not know the length yet: the samples end with the file then. Any other size
// that the file does not hold is an error. An Ogg file holds one stream, complete to its last page.
//
// Thread safety: free functions without state of their own; the opening of files is serialized, since libsndfile keeps
// the reason of a failure in a global variable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr int kSpeechRate = 16000;
inline constexpr std::size_t kMaxAudioBytes = 64u << 20;
inline constexpr double kMaxAudioSeconds = 600;
inline constexpr int kMaxAudioChannels = 8;
// Of floats in a file: squares and sums of what is smaller stay finite in f32. Full scale is 1.
inline constexpr float kMaxSampleValue = 1 << 20;

struct AudioLimits {
  std::size_t max_bytes = kMaxAudioBytes;  // of the file
  double max_seconds = kMaxAudioSeconds;
  int max_channels = kMaxAudioChannels;
  int min_rate = 8000;  // Hz
  int max_rate = 192000;
};

struct AudioInfo {
  int rate = 0;  // of the file, Hz
  int channels = 0;
  int64_t frames = 0;   // of the file: samples of each channel
  int64_t samples = 0;  // what decode_audio gives of the same bytes: mono at kSpeechRate
};

// What decode_audio will give. The length is that of the header, without a look at the samples; where none can be
// trusted (MP3, FLAC without a length), the file is decoded in blocks and its samples are dropped.
// kTooLarge: over max_bytes or max_seconds, with both values. kInvalidArgument: not such a file, a broken or truncated
// one, no samples, a rate or a number of channels out of range. kUnsupported: an encoding that is not read.
Result<AudioInfo> read_audio_info(std::span<const uint8_t> bytes, const AudioLimits& limits = {});

// Samples at kSpeechRate: read_audio_info().samples of them, or an error. Its errors; kInvalidArgument: also a sample
// that is not finite or over kMaxSampleValue, or fewer samples than the header states. kResourceExhausted: no memory.
Result<std::vector<float>> decode_audio(std::span<const uint8_t> bytes, const AudioLimits& limits = {});

}  // namespace millrace
