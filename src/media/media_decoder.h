// MediaDecoder: pictures and speech from untrusted bytes, decoded in a process of its own for each file: this
// program again, as `PROGRAM decode-media`, in the sandbox of media/child_program.h. A decoder that is taken over or
// crashes by a file costs this file's request alone, and finds no file to read and no address to send to.
//
//   this process                              PROGRAM decode-media picture
//     file in a descriptor ---------------->    decode_image()
//     checks every number  <----------------    header, then pixels; or an error's code and text
//
// Where the host starts no such process (no filter of system calls), files are decoded in this one, with a warning.
//
// Owner: the encoder. Thread safety: any thread; a call blocks it while the file is decoded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "media/audio.h"
#include "media/image.h"

namespace millrace {

inline constexpr const char* kDecodeMediaCommand = "decode-media";
inline constexpr int kDecodeMediaSeconds = 30;                          // of a core, and by the clock
inline constexpr std::size_t kDecodeMediaBytes = std::size_t{2} << 30;  // of memory
inline constexpr std::size_t kMaxDecodeErrorBytes = 1024;

class MediaDecoder {
 public:
  using Cancelled = std::function<bool()>;  // asked ten times a second

  // `program`: an absolute path; empty: everything is decoded in this process.
  explicit MediaDecoder(std::string program = "") : program_(std::move(program)) {}

  // The errors of decode_image() and decode_audio(); kInvalidArgument also where the process crashed, took over
  // kDecodeMediaSeconds or kDecodeMediaBytes, or answered what no decoder answers; kCancelled.
  Result<Image> picture(std::span<const uint8_t> bytes, const Cancelled& cancelled) const;
  Result<std::vector<float>> speech(std::span<const uint8_t> bytes, const AudioLimits& limits,
                                    const Cancelled& cancelled) const;

 private:
  bool apart() const { return !program_.empty() && !unavailable_.load(std::memory_order_relaxed); }
  // This host starts no such process: none is tried again.
  void give_up(const Status& why) const;

  const std::string program_;
  mutable std::atomic<bool> unavailable_{false};
};

// The process's side: reads kChildInput, writes to standard output. `words`: what follows kDecodeMediaCommand. Ends the
// process, with 0 also where the answer is an error.
[[noreturn]] void decode_media(const std::vector<std::string>& words);

}  // namespace millrace
