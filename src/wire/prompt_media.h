// What of a prompt is no text: pictures and audio, as the client sent them, and where their rows are. The server has
// read their headers, so the number of rows is known; the encoder decodes the bytes. A part of TokenizedRequest
// (wire/generation.h).
//
// Field numbers in the visit() functions are the wire format: append only. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "wire/blob.h"

namespace millrace::wire {

inline constexpr std::size_t kMaxPromptMedia = 64;              // of one request
inline constexpr std::size_t kMaxMediaBytes = 32u << 20;        // of one of them, encoded
inline constexpr std::size_t kMaxPromptMediaBytes = 48u << 20;  // of one request, together
inline constexpr std::size_t kMediaDigestBytes = 32;            // SHA-256

enum class MediaKind : uint8_t { kImage = 0, kAudio = 1 };

struct PromptMedia {
  MediaKind kind = MediaKind::kImage;
  int32_t begin = 0;  // its rows are [begin, begin + rows) of the prompt; those ids are placeholders
  int32_t rows = 0;
  int32_t grid_t = 0;  // of a picture: in patches, before they are merged; of an audio: mel frames, 1, 1
  int32_t grid_h = 0;
  int32_t grid_w = 0;
  Blob digest;        // of the encoded bytes and all that decides what becomes of them: equal digests, equal features
  Blob bytes;         // the file
  std::string field;  // of the request, for messages: "messages[0].content[1]"
  std::string traceparent = {};  // no field: of the request that it is encoded for

  template <typename V>
  void visit(V&& v) {
    v(1, kind), v(2, begin), v(3, rows), v(4, grid_t), v(5, grid_h), v(6, grid_w);
    v(7, digest, kMediaDigestBytes), v(8, bytes, kMaxMediaBytes), v(9, field);
  }
  friend bool operator==(const PromptMedia&, const PromptMedia&) = default;
};

}  // namespace millrace::wire
