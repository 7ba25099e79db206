// ParsedText: the text of one request, as it comes, to the events of an answer: reasoning, text, tool calls. And how
// many of its tokens were reasoning.
//
// Owner: the detokenize worker, for each request with OutputParsing. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "stages/generating/token_text.h"
#include "text/tools/output_parser.h"

namespace millrace {

class ParsedText {
 public:
  ParsedText(const wire::OutputParsing& parsing, const Tokenizer& tokenizer)
      : parser_(parsing, find_output_markers(parsing, tokenizer)) {}

  // What the text of one id adds; `last`: no more will come. A request that its text ends comes with `last` too.
  void push(const TokenText::Chunk& chunk, bool last, OutputEvents& out);
  int32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  OutputParser parser_;
  int32_t reasoning_tokens_ = 0;
};

}  // namespace millrace
