// Samples to sound files: WAV, FLAC, Ogg Opus, MP3 and bare 16-bit samples; mono. A file complete in memory, or WAV and
// bare samples in chunks while they are made.
//
// WAV, FLAC and bare samples have 16 bits: round(32768 x), cut to [-32768, 32767], little-endian; so 16-bit samples
// that decode_audio() gave come back unchanged. Opus and MP3 take floats, cut to [-1, 1], and the bit rate that
// libsndfile chooses (24 kHz: about 40 kbit/s of Opus). Equal samples give equal bytes.
//
// Thread safety: free functions without state of their own, as audio.h; an AudioStream belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

enum class AudioFormat : uint8_t { kWav, kFlac, kOpus, kMp3, kPcm16 };

std::string_view audio_format_name(AudioFormat format);          // "wav", "flac", "opus", "mp3", "pcm16"
std::string_view audio_content_type(AudioFormat format);         // "audio/wav", ...
std::optional<AudioFormat> find_audio_format(std::string_view);  // by its name; "pcm" too

inline constexpr std::size_t kMaxEncodedSamples = std::size_t{1} << 30;  // the sizes of a WAV have 32 bits

// `rate` in Hz: 1 to 384000; Opus: 8000, 12000, 16000, 24000 or 48000; MP3: the nine of its MPEG versions.
// kInvalidArgument: no samples, or one that is not finite; a rate that is not of these. kTooLarge: over
// kMaxEncodedSamples. kUnsupported: libsndfile was built without this format.
Result<std::string> encode_audio(std::span<const float> samples, int rate, AudioFormat format);

// A file whose length is not known when it begins. Of WAV both sizes are 0xFFFFFFFF then, as players expect of a pipe.
class AudioStream {
 public:
  // kInvalidArgument: another format than kWav and kPcm16, or a rate out of range.
  static Result<AudioStream> create(int rate, AudioFormat format);

  // The bytes of the next samples; those of the first call begin with the header, whether it has samples or not.
  // kInvalidArgument: a sample that is not finite; nothing is written.
  Result<std::string> write(std::span<const float> samples);

 private:
  explicit AudioStream(std::string header) : header_(std::move(header)) {}

  std::string header_;  // until it is written
};

}  // namespace millrace
