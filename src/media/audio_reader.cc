#include "media/audio_reader.h"

#include <sndfile.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

namespace millrace::audio {
namespace {

constexpr int kBlockFrames = 4096;

int major_format(Container container) {
  switch (container) {
    case Container::kWav:
      return SF_FORMAT_WAV;
    case Container::kFlac:
      return SF_FORMAT_FLAC;
    case Container::kOgg:
      return SF_FORMAT_OGG;
    case Container::kMp3:
      return SF_FORMAT_MPEG;
  }
  return 0;
}

bool is_read(int format) {
  const int encoding = format & SF_FORMAT_SUBMASK;
  switch (format & SF_FORMAT_TYPEMASK) {
    case SF_FORMAT_OGG:
      return encoding == SF_FORMAT_VORBIS || encoding == SF_FORMAT_OPUS;
    case SF_FORMAT_MPEG:
      return encoding == SF_FORMAT_MPEG_LAYER_III;
    default:
      return true;  // WAV: check_container() has read its encoding; FLAC has no others
  }
}

}  // namespace

struct AudioReader::Callbacks {
  static sf_count_t length(void* user) { return static_cast<sf_count_t>(static_cast<Source*>(user)->bytes.size()); }
  static sf_count_t seek(sf_count_t offset, int whence, void* user) {
    Source& source = *static_cast<Source*>(user);
    const auto size = static_cast<int64_t>(source.bytes.size());
    const int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? source.at : size;
    // Offsets come from the file: no sum of them may overflow.
    source.at = std::clamp<int64_t>(offset, -base, size - base) + base;
    return source.at;
  }
  static sf_count_t read(void* out, sf_count_t count, void* user) {
    Source& source = *static_cast<Source*>(user);
    const int64_t left = static_cast<int64_t>(source.bytes.size()) - source.at;
    const int64_t taken = std::clamp<int64_t>(count, 0, left);
    if (taken > 0) std::memcpy(out, source.bytes.data() + source.at, static_cast<std::size_t>(taken));
    source.at += taken;
    return taken;
  }
  static sf_count_t write(const void*, sf_count_t, void*) { return 0; }
  static sf_count_t position(void* user) { return static_cast<Source*>(user)->at; }
};

void AudioReader::Close::operator()(sf_private_tag* file) const { sf_close(file); }

Result<AudioReader> AudioReader::open(std::span<const uint8_t> bytes, const AudioLimits& limits) {
  if (bytes.size() > limits.max_bytes) {
    return error(StatusCode::kTooLarge, "the audio has {} bytes; wanted at most {}", bytes.size(), limits.max_bytes);
  }
  AudioReader reader;
  reader.limits_ = limits;
  reader.source_ = std::make_unique<Source>(Source{bytes, 0});
  ASSIGN_OR_RETURN(reader.container_, find_container(bytes));
  const auto frames = check_container(reader.container_, bytes, limits);
  if (!frames.ok()) return frames.status().with_prefix(container_name(reader.container_));
  reader.frames_ = *frames;
  if (const Status opened = reader.open_file(); !opened.ok()) {
    return opened.with_prefix(container_name(reader.container_));
  }
  return reader;
}

Status AudioReader::open_file() {
  static std::mutex opening;  // sf_error and sf_strerror of no file are globals of the library
  SF_VIRTUAL_IO calls = {Callbacks::length, Callbacks::seek, Callbacks::read, Callbacks::write, Callbacks::position};
  SF_INFO info{};
  {
    const std::lock_guard lock(opening);
    file_.reset(sf_open_virtual(&calls, SFM_READ, &info, source_.get()));
    if (file_ == nullptr) return invalid_argument("it cannot be read: {}", sf_strerror(nullptr));
  }
  const int type = info.format & SF_FORMAT_TYPEMASK;
  const bool is_wav = type == SF_FORMAT_WAVEX && container_ == Container::kWav;
  if ((type != major_format(container_) && !is_wav) || !is_read(info.format)) {
    return error(StatusCode::kUnsupported, "its encoding is {:#x} of libsndfile; wanted PCM, Vorbis, Opus or layer III",
                 info.format);
  }
  RETURN_IF_ERROR(check_shape(info.samplerate, info.channels, limits_));
  rate_ = info.samplerate;
  channels_ = info.channels;
  if (container_ == Container::kWav && info.frames != *frames_) {
    return invalid_argument("its decoder finds {} samples; wanted {}, as its chunks have", info.frames, *frames_);
  }
  // An MP3 has a length by its first frame, which is an estimate or another program's claim.
  if (container_ != Container::kMp3 && info.frames != SF_COUNT_MAX) frames_ = info.frames;
  if (frames_) RETURN_IF_ERROR(check_length(*frames_, rate_, limits_));
  block_.resize(static_cast<std::size_t>(kBlockFrames) * static_cast<std::size_t>(channels_));
  return ok_status();
}

Result<std::span<const float>> AudioReader::read() {
  const sf_count_t count = sf_readf_float(file_.get(), block_.data(), kBlockFrames);
  if (count <= 0) {
    if (const Status end = check_end(); !end.ok()) return end.with_prefix(container_name(container_));
    return std::span<const float>();
  }
  const auto frames = static_cast<std::size_t>(std::min<sf_count_t>(count, kBlockFrames));
  const auto channels = static_cast<std::size_t>(channels_);
  RETURN_IF_ERROR(check_block(std::span(block_).first(frames * channels)));
  read_ += static_cast<int64_t>(frames);
  RETURN_IF_ERROR(check_length(read_, rate_, limits_));
  if (channels > 1) {
    for (std::size_t i = 0; i < frames; ++i) {
      float sum = block_[i * channels];
      for (std::size_t c = 1; c < channels; ++c) sum += block_[i * channels + c];
      block_[i] = sum / static_cast<float>(channels);
    }
  }
  return std::span<const float>(block_).first(frames);
}

Status AudioReader::check_block(std::span<const float> values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::abs(values[i]) <= kMaxSampleValue) continue;  // false for NaN
    return invalid_argument("sample {} is {}; wanted a finite number of at most {}",
                            read_ + static_cast<int64_t>(i) / channels_, values[i], kMaxSampleValue);
  }
  return ok_status();
}

Status AudioReader::check_end() const {
  if (const int reason = sf_error(file_.get()); reason != SF_ERR_NO_ERROR) {
    return invalid_argument("it is corrupt or truncated after {} samples: {}", read_, sf_error_number(reason));
  }
  if (frames_ && read_ != *frames_) {
    return invalid_argument("it is corrupt or truncated after {} samples; wanted {}, as its header states", read_,
                            *frames_);
  }
  return check_length(read_, rate_, limits_);
}

}  // namespace millrace::audio
