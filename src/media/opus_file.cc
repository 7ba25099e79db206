// Ogg Opus by libopusfile, at 48 kHz as the codec has it. (libsndfile has it too, but gives memory that it has not
// written where a packet is broken.)
#include <opusfile.h>

#include "media/audio_source.h"

namespace millrace::audio {
namespace {

constexpr int64_t kOpusRate = 48000;

struct Delete {
  void operator()(OggOpusFile* file) const { op_free(file); }
};

class OpusFile : public AudioSource {
 public:
  explicit OpusFile(std::span<const uint8_t> bytes) : memory_{bytes, 0} {}

  Status open() {
    const OpusFileCallbacks calls = {[](void* user, unsigned char* out, int count) -> int {
                                       return static_cast<int>(static_cast<MemoryFile*>(user)->read(out, count));
                                     },
                                     [](void* user, opus_int64 offset, int whence) -> int {
                                       static_cast<MemoryFile*>(user)->seek(offset, whence);
                                       return 0;
                                     },
                                     [](void* user) -> opus_int64 { return static_cast<MemoryFile*>(user)->at; },
                                     nullptr};
    int reason = 0;
    file_.reset(op_open_callbacks(&memory_, &calls, nullptr, 0, &reason));
    if (file_ == nullptr) {
      return invalid_argument("it cannot be read: its headers are broken (libopusfile: {})", reason);
    }
    if (op_link_count(file_.get()) != 1) {
      return error(StatusCode::kUnsupported, "it has {} streams; wanted one", op_link_count(file_.get()));
    }
    channels_ = op_channel_count(file_.get(), 0);
    frames_ = op_pcm_total(file_.get(), 0);
    if (frames_ < 0) return invalid_argument("its headers are broken: it states no length");
    return ok_status();
  }

  int64_t rate() const override { return kOpusRate; }
  int64_t channels() const override { return channels_; }
  std::optional<int64_t> frames() const override { return frames_; }

  Result<std::size_t> read(std::span<float> block) override {
    const int count = op_read_float(file_.get(), block.data(), static_cast<int>(block.size()), nullptr);
    if (count < 0) return invalid_argument("it is corrupt: a packet is missing or broken (libopusfile: {})", count);
    return static_cast<std::size_t>(count);
  }

 private:
  MemoryFile memory_;
  std::unique_ptr<OggOpusFile, Delete> file_;  // after what it reads
  int64_t channels_ = 0;
  int64_t frames_ = 0;
};

}  // namespace

Result<std::unique_ptr<AudioSource>> open_opus(std::span<const uint8_t> bytes) {
  auto file = std::make_unique<OpusFile>(bytes);
  RETURN_IF_ERROR(file->open());
  return std::unique_ptr<AudioSource>(std::move(file));
}

}  // namespace millrace::audio
