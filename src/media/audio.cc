#include "media/audio.h"

#include <new>

#include "media/audio_reader.h"
#include "media/resampler.h"

namespace millrace {
namespace {

using audio::AudioReader;

Result<int64_t> count_frames(AudioReader& reader) {
  int64_t frames = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const auto block, reader.read());
    if (block.empty()) return frames;
    frames += static_cast<int64_t>(block.size());
  }
}

Result<AudioInfo> read_info(std::span<const uint8_t> bytes, const AudioLimits& limits) {
  ASSIGN_OR_RETURN(AudioReader reader, AudioReader::open(bytes, limits));
  AudioInfo info;
  info.rate = reader.rate();
  info.channels = reader.channels();
  if (reader.frames()) {
    info.frames = *reader.frames();
  } else {
    ASSIGN_OR_RETURN(info.frames, count_frames(reader));
  }
  info.samples = resampled_length(info.frames, info.rate, kSpeechRate);
  return info;
}

Result<std::vector<float>> decode(std::span<const uint8_t> bytes, const AudioLimits& limits) {
  ASSIGN_OR_RETURN(AudioReader reader, AudioReader::open(bytes, limits));
  ASSIGN_OR_RETURN(Resampler resampler, Resampler::create(reader.rate(), kSpeechRate));
  std::vector<float> samples;
  for (;;) {
    ASSIGN_OR_RETURN(const auto block, reader.read());
    if (block.empty()) break;
    RETURN_IF_ERROR(resampler.process(block, samples));
  }
  RETURN_IF_ERROR(resampler.finish(samples));
  return samples;
}

Status no_memory(std::size_t size) {
  return error(StatusCode::kResourceExhausted, "no memory left to decode the audio of {} bytes", size);
}

}  // namespace

Result<AudioInfo> read_audio_info(std::span<const uint8_t> bytes, const AudioLimits& limits) {
  try {
    return read_info(bytes, limits);
  } catch (const std::bad_alloc&) {
    return no_memory(bytes.size());
  }
}

Result<std::vector<float>> decode_audio(std::span<const uint8_t> bytes, const AudioLimits& limits) {
  try {
    return decode(bytes, limits);
  } catch (const std::bad_alloc&) {
    return no_memory(bytes.size());
  }
}

}  // namespace millrace
