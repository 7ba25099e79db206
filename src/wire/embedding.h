// The embedding of a prompt, where a request wants it instead of a text. A part of TokenDelta and TextDelta
// (wire/generation.h).
//
// Field numbers in the visit() functions are the wire format: append only. Thread safety: a value.
#pragma once

#include <cstddef>

#include "wire/blob.h"

namespace millrace::wire {

inline constexpr std::size_t kMaxEmbeddingBytes = 1u << 20;

struct Embedding {
  Blob values;  // F32, little-endian: the hidden row of the prompt's last token behind the final norm

  template <typename V>
  void visit(V&& v) {
    v(1, values, kMaxEmbeddingBytes);
  }
  friend bool operator==(const Embedding&, const Embedding&) = default;
};

}  // namespace millrace::wire
