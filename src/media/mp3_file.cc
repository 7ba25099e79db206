// MP3 by libmpg123: silent, in floats, without the delays of the encoder where a header states them. (libsndfile lets
// it print a line for each bad frame.)
#include <mpg123.h>

#include <array>

#include "media/audio_source.h"

namespace millrace::audio {
namespace {

// Of MPEG 1, 2 and 2.5.
constexpr std::array<long, 9> kMp3Rates = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000};

struct Delete {
  void operator()(mpg123_handle* handle) const { mpg123_delete(handle); }
};

class Mp3File : public AudioSource {
 public:
  explicit Mp3File(std::span<const uint8_t> bytes) : memory_{bytes, 0} {}

  Status open() {
    int reason = MPG123_OK;
    handle_.reset(mpg123_new(nullptr, &reason));
    if (handle_ == nullptr) {
      return error(StatusCode::kResourceExhausted, "no decoder: {}", mpg123_plain_strerror(reason));
    }
    RETURN_IF_ERROR(set_up());
    const auto read = [](void* user, void* out, std::size_t count) -> mpg123_ssize_t {
      return static_cast<MemoryFile*>(user)->read(out, static_cast<int64_t>(count));
    };
    const auto seek = [](void* user, off_t offset, int whence) -> off_t {
      return static_cast<MemoryFile*>(user)->seek(offset, whence);
    };
    if (mpg123_replace_reader_handle(handle_.get(), read, seek, nullptr) != MPG123_OK ||
        mpg123_open_handle(handle_.get(), &memory_) != MPG123_OK) {
      return failure();
    }
    int encoding = 0;
    mpg123_frameinfo frame{};
    if (mpg123_getformat(handle_.get(), &rate_, &channels_, &encoding) != MPG123_OK ||
        mpg123_info(handle_.get(), &frame) != MPG123_OK) {
      return failure();
    }
    if (frame.layer == 3 && encoding == MPG123_ENC_FLOAT_32) return ok_status();
    return error(StatusCode::kUnsupported, "it is of MPEG audio layer {}; wanted layer 3", frame.layer);
  }

  int64_t rate() const override { return rate_; }
  int64_t channels() const override { return channels_; }
  // The library has a number: of the first frame's bytes, which is a guess, or what a header claims.
  std::optional<int64_t> frames() const override { return std::nullopt; }

  Result<std::size_t> read(std::span<float> block) override {
    const std::size_t frame_bytes = sizeof(float) * static_cast<std::size_t>(channels_);
    std::size_t done = 0;
    const int result = mpg123_read(handle_.get(), reinterpret_cast<unsigned char*>(block.data()),
                                   block.size_bytes() / frame_bytes * frame_bytes, &done);
    if (result != MPG123_OK && result != MPG123_DONE) return failure();
    return done / frame_bytes;
  }

 private:
  // Silent, floats, one format from the first frame to the last.
  Status set_up() {
    mpg123_handle* handle = handle_.get();
    constexpr long kFlags = MPG123_QUIET | MPG123_FORCE_FLOAT | MPG123_NO_FRANKENSTEIN | MPG123_SKIP_ID3V2;
    if (mpg123_param(handle, MPG123_ADD_FLAGS, kFlags, 0) != MPG123_OK ||
        mpg123_param(handle, MPG123_REMOVE_FLAGS, MPG123_AUTO_RESAMPLE, 0) != MPG123_OK ||
        mpg123_format_none(handle) != MPG123_OK) {
      return failure();
    }
    for (const long rate : kMp3Rates) {
      if (mpg123_format(handle, rate, MPG123_MONO | MPG123_STEREO, MPG123_ENC_FLOAT_32) != MPG123_OK) return failure();
    }
    return ok_status();
  }

  Status failure() { return invalid_argument("it cannot be read: {}", mpg123_strerror(handle_.get())); }

  MemoryFile memory_;
  std::unique_ptr<mpg123_handle, Delete> handle_;  // after what it reads
  long rate_ = 0;
  int channels_ = 0;
};

}  // namespace

Result<std::unique_ptr<AudioSource>> open_mp3(std::span<const uint8_t> bytes) {
  auto file = std::make_unique<Mp3File>(bytes);
  RETURN_IF_ERROR(file->open());
  return std::unique_ptr<AudioSource>(std::move(file));
}

}  // namespace millrace::audio
