#include "media/audio_reader.h"

#include <cmath>

namespace millrace::audio {
namespace {

constexpr std::size_t kBlockFrames = 4096;

Result<std::unique_ptr<AudioSource>> open_decoder(Container container, std::span<const uint8_t> bytes,
                                                  const AudioLimits& limits) {
  RETURN_IF_ERROR(check_structure(container, bytes));
  switch (container) {
    case Container::kWav: {
      ASSIGN_OR_RETURN(const WavLayout layout, read_wav_layout(bytes, limits));
      return open_wav(layout);
    }
    case Container::kFlac:
      return open_flac(bytes);
    case Container::kVorbis:
      return open_vorbis(bytes);
    case Container::kOpus:
      return open_opus(bytes);
    case Container::kMp3:
      return open_mp3(bytes);
  }
  return internal_error("no decoder {}", static_cast<int>(container));
}

}  // namespace

Result<AudioReader> AudioReader::open(std::span<const uint8_t> bytes, const AudioLimits& limits) {
  if (bytes.size() > limits.max_bytes) {
    return error(StatusCode::kTooLarge, "the audio has {} bytes; wanted at most {}", bytes.size(), limits.max_bytes);
  }
  AudioReader reader;
  reader.limits_ = limits;
  ASSIGN_OR_RETURN(reader.container_, find_container(bytes));
  if (const Status opened = reader.open_source(bytes); !opened.ok()) {
    return opened.with_prefix(container_name(reader.container_));
  }
  return reader;
}

Status AudioReader::open_source(std::span<const uint8_t> bytes) {
  ASSIGN_OR_RETURN(source_, open_decoder(container_, bytes, limits_));
  RETURN_IF_ERROR(check_shape(source_->rate(), source_->channels(), limits_));
  frames_ = source_->frames();
  if (frames_) RETURN_IF_ERROR(check_length(*frames_, rate(), limits_));
  block_.resize(kBlockFrames * static_cast<std::size_t>(channels()));
  return ok_status();
}

Result<std::span<const float>> AudioReader::read() {
  const auto count = read_block();
  if (!count.ok()) return count.status().with_prefix(container_name(container_));
  const auto channels = static_cast<std::size_t>(source_->channels());
  if (channels > 1) {
    for (std::size_t i = 0; i < *count; ++i) {
      float sum = block_[i * channels];
      for (std::size_t c = 1; c < channels; ++c) sum += block_[i * channels + c];
      block_[i] = sum / static_cast<float>(channels);
    }
  }
  return std::span<const float>(block_).first(*count);
}

Result<std::size_t> AudioReader::read_block() {
  ASSIGN_OR_RETURN(const std::size_t count, source_->read(block_));
  if (count > 0) {
    RETURN_IF_ERROR(check_block(std::span(block_).first(count * static_cast<std::size_t>(channels()))));
    read_ += static_cast<int64_t>(count);
  } else if (frames_ && read_ != *frames_) {
    return invalid_argument("it is corrupt or truncated after {} samples; wanted {}, as its header states", read_,
                            *frames_);
  }
  RETURN_IF_ERROR(check_length(read_, rate(), limits_));
  return count;
}

Status AudioReader::check_block(std::span<const float> values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) <= kMaxSampleValue) continue;  // false for NaN
    return invalid_argument("sample {} is {}; wanted a finite number of at most {}",
                            read_ + static_cast<int64_t>(i) / channels(), values[i], kMaxSampleValue);
  }
  return ok_status();
}

}  // namespace millrace::audio
