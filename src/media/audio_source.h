// The decoders behind audio_reader.h. For this folder alone.
//
// Owner: the AudioReader; one thread. The bytes must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/status.h"
#include "media/wav_layout.h"

namespace millrace::audio {

class AudioSource {
 public:
  AudioSource() = default;
  AudioSource(const AudioSource&) = delete;
  AudioSource& operator=(const AudioSource&) = delete;
  virtual ~AudioSource() = default;

  // Known once it is open, whatever they are: the caller checks them.
  virtual int64_t rate() const = 0;
  virtual int64_t channels() const = 0;
  virtual std::optional<int64_t> frames() const = 0;  // as the header states; none where it is not known or a guess

  // Fills up to `block.size() / channels()` frames, interleaved; gives their number, 0 at the end of the file.
  // kInvalidArgument: the file is corrupt here.
  virtual Result<std::size_t> read(std::span<float> block) = 0;
};

// WAV and FLAC by libsndfile; the libraries of the other formats are named in their files.
Result<std::unique_ptr<AudioSource>> open_wav(const WavLayout& layout);
Result<std::unique_ptr<AudioSource>> open_flac(std::span<const uint8_t> bytes);
Result<std::unique_ptr<AudioSource>> open_opus(std::span<const uint8_t> bytes);
Result<std::unique_ptr<AudioSource>> open_vorbis(std::span<const uint8_t> bytes);
Result<std::unique_ptr<AudioSource>> open_mp3(std::span<const uint8_t> bytes);

// Held while libsndfile opens a file: the reason of a failure is a global of the library.
std::mutex& sound_library_lock();

// What the libraries read: a file in memory, with a position that stays in it.
struct MemoryFile {
  std::span<const uint8_t> bytes;
  int64_t at = 0;

  int64_t seek(int64_t offset, int whence);
  int64_t read(void* out, int64_t count);
};

}  // namespace millrace::audio
