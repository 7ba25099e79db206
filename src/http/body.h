// A request body as it arrives: by Content-Length or chunked, never more than its limit.
//
// Chunk sizes are plain hex of at most 16 digits; extensions and trailers are skipped and bounded. Framing that
// outweighs its data (a million 1-byte chunks) is refused: it costs the sender little and the receiver much.
//
// Owner: its Session, for one body. Thread safety: none; one object per request. No sockets, so that a fuzzer can drive
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "http/request_head.h"

namespace millrace::http {

class BodyReader {
 public:
  // `limit_bytes` bounds the de-chunked body.
  BodyReader(const RequestHead& head, uint64_t limit_bytes);

  // Takes bytes from `data`, appends the content to `body`, returns how many bytes were taken. After done() it takes
  // none.
  size_t consume(std::string_view data, std::string& body);
  bool done() const { return state_ == State::kDone; }
  // 400 for malformed chunks, 413 over the limit. After an error nothing more is taken.
  const HttpError& error() const { return error_; }

 private:
  enum class State : uint8_t {
    kFixed,      // content_length bytes
    kSize,       // hex digits of a chunk size
    kExtension,  // from ';' to CR
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailer,  // at the start of a trailer line or inside it
    kTrailerLf,
    kDone,
    kFailed,
  };
  void fail(int status, std::string message);
  void framing_byte(char c);
  void size_digit(char c);
  void size_line_done();

  State state_ = State::kDone;
  uint64_t limit_;
  uint64_t left_ = 0;     // data bytes of the body or of this chunk still to come; also the size while digits arrive
  uint64_t total_ = 0;    // data bytes promised so far
  uint64_t framing_ = 0;  // bytes that are not data
  int digits_ = 0;
  size_t trailer_line_ = 0;  // bytes of the current trailer line
  HttpError error_;
};

}  // namespace millrace::http
