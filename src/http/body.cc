#include "http/body.h"

#include <fmt/core.h>

#include <algorithm>

namespace millrace::http {
namespace {

constexpr int kMaxSizeDigits = 16;
// Framing bytes allowed: a free part (extensions, trailers, small bodies) and as many as 4 a data byte. A stream of
// 1-byte chunks costs 5 a byte.
constexpr uint64_t kFreeFramingBytes = 16 << 10;
constexpr uint64_t kFramingPerDataByte = 4;

}  // namespace

BodyReader::BodyReader(const RequestHead& head, uint64_t limit_bytes) : limit_(limit_bytes) {
  if (head.chunked) {
    state_ = State::kSize;
  } else if (head.content_length > limit_) {
    fail(413, fmt::format("request body is {} bytes; the limit is {}", head.content_length, limit_));
  } else if (head.content_length > 0) {
    state_ = State::kFixed;
    left_ = head.content_length;
  }
}

void BodyReader::fail(int status, std::string message) {
  state_ = State::kFailed;
  error_ = {status, std::move(message)};
}

size_t BodyReader::consume(std::string_view data, std::string& body) {
  size_t at = 0;
  while (at < data.size() && state_ != State::kDone && state_ != State::kFailed) {
    if (state_ != State::kFixed && state_ != State::kData) {
      framing_byte(data[at++]);
      continue;
    }
    size_t take = static_cast<size_t>(std::min<uint64_t>(left_, data.size() - at));
    body.append(data.data() + at, take);
    at += take;
    left_ -= take;
    if (left_ == 0) state_ = state_ == State::kFixed ? State::kDone : State::kDataCr;
  }
  return at;
}

void BodyReader::size_digit(char c) {
  int value = -1;
  if (c >= '0' && c <= '9') value = c - '0';
  if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
  if (c >= 'A' && c <= 'F') value = c - 'A' + 10;
  if (value >= 0) {
    if (++digits_ > kMaxSizeDigits) return fail(400, fmt::format("chunk size of over {} digits", kMaxSizeDigits));
    left_ = left_ * 16 + static_cast<uint64_t>(value);
    return;
  }
  if (digits_ == 0) return fail(400, "malformed chunk size; wanted hex digits");
  if (c == '\r') {
    state_ = State::kSizeLf;
  } else if (c == ';') {
    state_ = State::kExtension;
  } else {
    fail(400, "malformed chunk size; wanted hex digits");
  }
}

void BodyReader::size_line_done() {
  digits_ = 0;
  if (left_ == 0) {
    state_ = State::kTrailer;
    trailer_line_ = 0;
    return;
  }
  if (left_ > limit_ || total_ > limit_ - left_) {
    return fail(413, fmt::format("request body is over the limit of {} bytes", limit_));
  }
  total_ += left_;
  state_ = State::kData;
}

void BodyReader::framing_byte(char c) {
  if (++framing_ > kFreeFramingBytes + kFramingPerDataByte * total_) {
    return fail(400, "chunk framing outweighs the data; send larger chunks");
  }
  switch (state_) {
    case State::kSize:
      return size_digit(c);
    case State::kExtension:
      if (c == '\r') {
        state_ = State::kSizeLf;
      } else if (c == '\n' || c == '\0') {
        fail(400, "malformed chunk extension");
      }
      return;
    case State::kSizeLf:
      if (c != '\n') return fail(400, "a chunk size line does not end in CRLF");
      return size_line_done();
    case State::kDataCr:
      if (c != '\r') return fail(400, "chunk data does not end in CRLF");
      state_ = State::kDataLf;
      return;
    case State::kDataLf:
      if (c != '\n') return fail(400, "chunk data does not end in CRLF");
      state_ = State::kSize;
      return;
    case State::kTrailer:
      if (c == '\r') {
        state_ = State::kTrailerLf;
      } else if (c == '\n' || c == '\0') {
        fail(400, "malformed trailer");
      } else {
        ++trailer_line_;
      }
      return;
    case State::kTrailerLf:
      if (c != '\n') return fail(400, "malformed trailer");
      state_ = trailer_line_ == 0 ? State::kDone : State::kTrailer;
      trailer_line_ = 0;
      return;
    case State::kFixed:
    case State::kData:
    case State::kDone:
    case State::kFailed:
      return;
  }
}

}  // namespace millrace::http
