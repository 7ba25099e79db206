// A segment of a rendered prompt and where its bytes came from.
//
// Trusted text was written by the chat template (or is a token name of the model); untrusted text came with the
// request. The tokenizer recognises special tokens in trusted segments only, so a user who types <|im_end|> cannot
// forge one. Adjacent segments of the same kind are merged by their producer; a segment is never empty.
//
// Thread safety: a value.
#pragma once

#include <string>

namespace millrace {

struct Segment {
  std::string text;  // UTF-8
  bool trusted = false;

  friend bool operator==(const Segment&, const Segment&) = default;
};

}  // namespace millrace
