// TokenText: the ids of one request as text, with what ends the request by its text: the incremental detokenizer and
// the stop strings and patterns together. One rule for all that turn a stream of ids into text, so that all of
// them end a request at the same id.
//
// Markers of tool calls and reasoning that came as tokens (text/tools/output_parser.h) are named, so that
// text that spells one is not taken for it. They are never skipped as special tokens are.
//
// Invariants: chunks are whole UTF-8 characters and never a part of a stop string that may still complete. After an end
// nothing is fed any more. Memory: StopMatcher's bound, and what the incremental detokenizer holds.
// Owner: what follows the request. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"
#include "text/tools/output_parser.h"
#include "wire/generation.h"

namespace millrace {

class TokenText {
 public:
  // The bytes of a chunk's text that are a marker's token.
  struct Mark {
    std::size_t begin = 0;
    std::size_t size = 0;
  };
  struct Chunk {
    std::string text;
    std::vector<Mark> marks;             // in their sequence
    std::size_t fed = 0;                 // how many of the ids count: up to the one that completed a match
    std::optional<wire::Finish> finish;  // kStop with matched_text, or kError: a pattern gave up
  };

  // kInvalidArgument: a stop string or pattern that cannot be one.
  static Result<TokenText> create(std::shared_ptr<const Tokenizer> tokenizer, const wire::DetokenizeStart& start);

  // What `ids` add. `last`: no more will come, so what is held comes too.
  Chunk push(std::span<const int32_t> ids, bool last);
  int32_t ids_fed() const { return ids_fed_; }

 private:
  TokenText(IncrementalDetokenizer detokenizer, StopMatcher stops, OutputMarkers markers)
      : detokenizer_(std::move(detokenizer)), stops_(std::move(stops)), markers_(std::move(markers)) {}
  std::string text_of(int32_t id);
  void append(Chunk& chunk, StopMatcher::Output output, bool last);

  IncrementalDetokenizer detokenizer_;
  StopMatcher stops_;
  OutputMarkers markers_;
  int32_t ids_fed_ = 0;
  std::size_t pushed_ = 0, released_ = 0;  // bytes given to stops_, and emitted by it
  std::deque<Mark> marks_;                 // of bytes that are in no chunk yet, counted from the first of all
  std::string partial_;                    // released bytes of the first of these: it comes in one chunk
};

// Where the text of its ids ends the request, what is behind the end goes from the delta, which gets the finish. True:
// the text alone ended it, and its ids are still being generated.
bool end_by_text(TokenText& stops, wire::TokenDelta& delta);

}  // namespace millrace
