// Ogg Vorbis by libvorbisfile. (libsndfile has it too, but leaks what it allocated where a header is broken.)
#include <vorbis/codec.h>
#include <vorbis/vorbisfile.h>

#include <algorithm>

#include "media/audio_source.h"

namespace millrace::audio {
namespace {

class VorbisFile : public AudioSource {
 public:
  explicit VorbisFile(std::span<const uint8_t> bytes) : memory_{bytes, 0} {}
  ~VorbisFile() override {
    if (is_open_) ov_clear(&file_);
  }

  Status open() {
    const ov_callbacks calls = {[](void* out, std::size_t size, std::size_t count, void* user) -> std::size_t {
                                  const int64_t taken =
                                      static_cast<MemoryFile*>(user)->read(out, static_cast<int64_t>(size * count));
                                  return static_cast<std::size_t>(taken) / size;
                                },
                                [](void* user, ogg_int64_t offset, int whence) -> int {
                                  static_cast<MemoryFile*>(user)->seek(offset, whence);
                                  return 0;
                                },
                                nullptr, [](void* user) -> long { return static_cast<MemoryFile*>(user)->at; }};
    if (const int reason = ov_open_callbacks(&memory_, &file_, nullptr, 0, calls); reason != 0) {
      return invalid_argument("it cannot be read: its headers are broken (libvorbisfile: {})", reason);
    }
    is_open_ = true;
    if (ov_streams(&file_) != 1) {
      return error(StatusCode::kUnsupported, "it has {} streams; wanted one", ov_streams(&file_));
    }
    const vorbis_info* info = ov_info(&file_, -1);
    const ogg_int64_t frames = ov_pcm_total(&file_, -1);
    if (info == nullptr || frames < 0) return invalid_argument("its headers are broken: it states no length");
    rate_ = info->rate;
    channels_ = info->channels;
    frames_ = frames;
    return ok_status();
  }

  int64_t rate() const override { return rate_; }
  int64_t channels() const override { return channels_; }
  std::optional<int64_t> frames() const override { return frames_; }

  Result<std::size_t> read(std::span<float> block) override {
    float** planes = nullptr;  // one a channel
    const int wanted = static_cast<int>(static_cast<int64_t>(block.size()) / channels_);
    const long count = ov_read_float(&file_, &planes, wanted, nullptr);
    if (count < 0) return invalid_argument("it is corrupt: a packet is missing or broken (libvorbisfile: {})", count);
    const auto frames = static_cast<std::size_t>(count);
    const auto channels = static_cast<std::size_t>(channels_);
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t i = 0; i < frames; ++i) block[i * channels + c] = planes[c][i];
    }
    return frames;
  }

 private:
  MemoryFile memory_;
  OggVorbis_File file_{};
  bool is_open_ = false;
  int64_t rate_ = 0;
  int64_t channels_ = 0;
  int64_t frames_ = 0;
};

}  // namespace

Result<std::unique_ptr<AudioSource>> open_vorbis(std::span<const uint8_t> bytes) {
  auto file = std::make_unique<VorbisFile>(bytes);
  RETURN_IF_ERROR(file->open());
  return std::unique_ptr<AudioSource>(std::move(file));
}

}  // namespace millrace::audio
