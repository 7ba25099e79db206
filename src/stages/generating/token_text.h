// TokenText: the ids of one request as text, with what ends the request by its text: the incremental detokenizer and
// the stop strings and patterns together. One rule for everybody who turns a stream of ids into text, so that all of
// them end a request at the same id.
//
// Invariants: pieces are whole UTF-8 characters and never a part of a stop string that may still complete. After an end
// nothing is fed any more. Memory: StopMatcher's bound, and what the incremental detokenizer holds.
// Owner: whoever follows the request. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "wire/generation.h"

namespace millrace {

class TokenText {
 public:
  struct Piece {
    std::string text;
    std::size_t fed = 0;                 // how many of the ids count: up to the one that completed a match
    std::optional<wire::Finish> finish;  // kStop with matched_text, or kError: a pattern gave up
  };

  // kInvalidArgument: a stop string or pattern that cannot be one.
  static Result<TokenText> create(std::shared_ptr<const Tokenizer> tokenizer, const wire::DetokenizeStart& start);

  // What `ids` add. `last`: no more will come, so what is held comes too.
  Piece feed(std::span<const int32_t> ids, bool last);
  int32_t ids_fed() const { return ids_fed_; }

 private:
  TokenText(IncrementalDetokenizer detokenizer, StopMatcher stops)
      : detokenizer_(std::move(detokenizer)), stops_(std::move(stops)) {}
  static void append(Piece& piece, StopMatcher::Output output);

  IncrementalDetokenizer detokenizer_;
  StopMatcher stops_;
  int32_t ids_fed_ = 0;
};

}  // namespace millrace
