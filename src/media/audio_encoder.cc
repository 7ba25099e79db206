#include "media/audio_encoder.h"

#include <sndfile.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "media/audio_source.h"
#include "media/ogg_pages.h"

namespace millrace::audio {
namespace {

constexpr uint32_t kSerial = 1;  // of the one stream in an Ogg file

// What the library writes, and reads again where it completes a header at the end.
struct Target {
  std::string bytes;
  std::size_t at = 0;
};

Target& target_of(void* user) { return *static_cast<Target*>(user); }

sf_count_t seek_target(sf_count_t offset, int whence, void* user) {
  Target& target = target_of(user);
  const auto size = static_cast<sf_count_t>(target.bytes.size());
  const sf_count_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? static_cast<sf_count_t>(target.at) : size;
  target.at = static_cast<std::size_t>(std::clamp<sf_count_t>(base + offset, 0, size));
  return static_cast<sf_count_t>(target.at);
}
sf_count_t read_target(void* out, sf_count_t count, void* user) {
  Target& target = target_of(user);
  const std::size_t taken = std::min(static_cast<std::size_t>(count), target.bytes.size() - target.at);
  std::memcpy(out, target.bytes.data() + target.at, taken);
  target.at += taken;
  return static_cast<sf_count_t>(taken);
}
sf_count_t write_target(const void* in, sf_count_t count, void* user) {
  Target& target = target_of(user);
  const auto size = static_cast<std::size_t>(count);
  target.bytes.resize(std::max(target.bytes.size(), target.at + size));
  std::memcpy(target.bytes.data() + target.at, in, size);
  target.at += size;
  return count;
}

struct Close {
  void operator()(SNDFILE* file) const { sf_close(file); }
};

// `write` puts all samples into the file and gives their number.
template <typename Write>
Result<std::string> encode(int format, int rate, std::size_t samples, Write write) {
  SF_VIRTUAL_IO calls = {[](void* user) { return static_cast<sf_count_t>(target_of(user).bytes.size()); }, seek_target,
                         read_target, write_target,
                         [](void* user) { return static_cast<sf_count_t>(target_of(user).at); }};
  Target target;
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = 1;
  info.format = format;
  std::unique_ptr<SNDFILE, Close> file;
  {
    const std::lock_guard lock(sound_library_lock());
    file.reset(sf_open_virtual(&calls, SFM_WRITE, &info, &target));
    if (file == nullptr) return error(StatusCode::kUnsupported, "no encoder: {}", sf_strerror(nullptr));
  }
  const sf_count_t written = write(file.get());
  if (written != static_cast<sf_count_t>(samples)) {
    return internal_error("the encoder took {} of {} samples: {}", written, samples, sf_strerror(file.get()));
  }
  if (const int reason = sf_close(file.release()); reason != SF_ERR_NO_ERROR) {
    return internal_error("the encoder failed: {}", sf_error_number(reason));
  }
  return std::move(target.bytes);
}

// The library draws the serial number of a stream from the clock; equal samples shall give equal bytes.
void set_ogg_serial(std::string& file) {
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(file.data()), file.size());
  const auto put = [&](std::size_t at, uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<uint8_t>(value >> 8 * i);
  };
  for (std::size_t at = 0; is_ogg_page(bytes, at);) {
    const std::size_t size = ogg_page_size(bytes, at);
    if (size == 0) return;
    put(at + kOggSerial, kSerial);
    put(at + kOggChecksum, ogg_checksum(bytes.subspan(at, size)));
    at += size;
  }
}

}  // namespace

Result<std::string> encode_flac(std::span<const int16_t> samples, int rate) {
  return encode(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, rate, samples.size(), [&](SNDFILE* file) {
    return sf_write_short(file, samples.data(), static_cast<sf_count_t>(samples.size()));
  });
}

Result<std::string> encode_lossy(std::span<const float> samples, int rate, AudioFormat format) {
  const bool is_opus = format == AudioFormat::kOpus;
  CHECK(is_opus || format == AudioFormat::kMp3);
  const int type = is_opus ? SF_FORMAT_OGG | SF_FORMAT_OPUS : SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III;
  auto file = encode(type, rate, samples.size(), [&](SNDFILE* out) {
    return sf_write_float(out, samples.data(), static_cast<sf_count_t>(samples.size()));
  });
  if (file.ok() && is_opus) set_ogg_serial(*file);
  return file;
}

}  // namespace millrace::audio
