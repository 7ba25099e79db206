// The samples of WAV, and FLAC, by libsndfile from memory; and the file in memory that the other decoders read too.
#include <sndfile.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "media/audio_source.h"

namespace millrace::audio {
namespace {

int raw_format(const WavLayout& layout) {
  switch (layout.encoding) {
    case WavLayout::Encoding::kFloat:
      return layout.bits == 32 ? SF_FORMAT_FLOAT : SF_FORMAT_DOUBLE;
    case WavLayout::Encoding::kAlaw:
      return SF_FORMAT_ALAW;
    case WavLayout::Encoding::kUlaw:
      return SF_FORMAT_ULAW;
    case WavLayout::Encoding::kPcm:
      break;
  }
  if (layout.bits == 8) return SF_FORMAT_PCM_U8;
  return layout.bits == 16 ? SF_FORMAT_PCM_16 : layout.bits == 24 ? SF_FORMAT_PCM_24 : SF_FORMAT_PCM_32;
}

struct Close {
  void operator()(SNDFILE* file) const { sf_close(file); }
};

MemoryFile& file_of(void* user) { return *static_cast<MemoryFile*>(user); }

class SoundFile : public AudioSource {
 public:
  explicit SoundFile(std::span<const uint8_t> bytes) : memory_{bytes, 0} {}

  // `info`: of a file without a header, what it holds.
  Status open(const SF_INFO& info) {
    SF_VIRTUAL_IO calls = {
        [](void* user) { return static_cast<sf_count_t>(file_of(user).bytes.size()); },
        [](sf_count_t offset, int whence, void* user) -> sf_count_t { return file_of(user).seek(offset, whence); },
        [](void* out, sf_count_t count, void* user) -> sf_count_t { return file_of(user).read(out, count); },
        [](const void*, sf_count_t, void*) -> sf_count_t { return 0; },
        [](void* user) -> sf_count_t { return file_of(user).at; }};
    info_ = info;
    const std::lock_guard lock(sound_library_lock());
    file_.reset(sf_open_virtual(&calls, SFM_READ, &info_, &memory_));
    if (file_ == nullptr) return invalid_argument("it cannot be read: {}", sf_strerror(nullptr));
    return ok_status();
  }

  int64_t rate() const override { return info_.samplerate; }
  int64_t channels() const override { return info_.channels; }
  int type() const { return info_.format & SF_FORMAT_TYPEMASK; }
  std::optional<int64_t> frames() const override {
    if (info_.frames == SF_COUNT_MAX) return std::nullopt;
    return info_.frames;
  }

  Result<std::size_t> read(std::span<float> block) override {
    const auto wanted = static_cast<sf_count_t>(block.size()) / info_.channels;
    const sf_count_t count = sf_readf_float(file_.get(), block.data(), wanted);
    if (count > 0) return static_cast<std::size_t>(std::min(count, wanted));
    const int reason = sf_error(file_.get());
    if (reason == SF_ERR_NO_ERROR) return std::size_t{0};
    return invalid_argument("it is corrupt or truncated: {}", sf_error_number(reason));
  }

 private:
  MemoryFile memory_;
  SF_INFO info_{};
  std::unique_ptr<SNDFILE, Close> file_;  // after what it reads
};

}  // namespace

std::mutex& sound_library_lock() {
  static std::mutex lock;
  return lock;
}

int64_t MemoryFile::seek(int64_t offset, int whence) {
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? at : size;
  at = std::clamp<int64_t>(offset, -base, size - base) + base;  // offsets come from the file: no sum may overflow
  return at;
}

int64_t MemoryFile::read(void* out, int64_t count) {
  const int64_t taken = std::clamp<int64_t>(count, 0, static_cast<int64_t>(bytes.size()) - at);
  if (taken > 0) std::memcpy(out, bytes.data() + at, static_cast<std::size_t>(taken));
  at += taken;
  return taken;
}

Result<std::unique_ptr<AudioSource>> open_wav(const WavLayout& layout) {
  auto file = std::make_unique<SoundFile>(layout.samples);
  SF_INFO info{};
  info.samplerate = layout.rate;
  info.channels = layout.channels;
  info.format = SF_FORMAT_RAW | SF_ENDIAN_LITTLE | raw_format(layout);
  RETURN_IF_ERROR(file->open(info));
  return std::unique_ptr<AudioSource>(std::move(file));
}

Result<std::unique_ptr<AudioSource>> open_flac(std::span<const uint8_t> bytes) {
  auto file = std::make_unique<SoundFile>(bytes);
  RETURN_IF_ERROR(file->open({}));
  if (file->type() != SF_FORMAT_FLAC) {
    return error(StatusCode::kUnsupported, "its format is {:#x} of libsndfile; wanted FLAC", file->type());
  }
  return std::unique_ptr<AudioSource>(std::move(file));
}

}  // namespace millrace::audio
