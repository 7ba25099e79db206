// IncrementalDetokenizer: the ids of one request, one after the other, to text that can be sent at once.
//
// Owned by the request that it belongs to and used by one thread at a time; it shares the immutable Tokenizer.
// Invariants: each text is valid UTF-8; no text holds a part of a character, nor U+FFFD for a character that a later
// id completes; the texts joined equal tokenizer.decode(all ids), or where text stands before them, what they add to
// it. Byte-fallback tokens (<0xE4>) are therefore held until the run of such tokens ends, because only then does
// the decoder know whether the run is UTF-8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

namespace millrace {

class DecoderState;

class IncrementalDetokenizer {
 public:
  // `continues_text`: other text stands before, such as a prompt's, so that a decoder which takes a space from the
  // start of a text takes none here.
  IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                         bool continues_text = false);
  ~IncrementalDetokenizer();
  IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept;
  IncrementalDetokenizer& operator=(IncrementalDetokenizer&&) noexcept;

  // The text that `id` makes ready; often empty. Ids without a token add nothing. `keep`: a special token is not
  // skipped.
  std::string push(int32_t id, bool keep = false);
  // What is still held, broken bytes as U+FFFD. Call once, after the last id.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<DecoderState> state_;
  bool skip_special_tokens_ = false;
};

}  // namespace millrace
