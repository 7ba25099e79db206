// OutputParser: a request's output, as it comes, to the events that an answer shows: reasoning, text and tool calls.
// The two parsers in a row, with the markers that they look for.
//
// Owned by one request; one thread at a time. Bounded as its parsers are (text/tools/tool_parser.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/tools/output_event.h"
#include "text/tools/reasoning_parser.h"
#include "text/tools/tool_parser.h"
#include "wire/output_parsing.h"

namespace millrace {

// The markers that a request's parsers look for, of a tokenizer. A marker that the tokenizer has as one added token
// counts as that token alone, so that nothing else spells it: neither the model's ordinary tokens nor, in the prompt,
// a client's text.
struct OutputMarkers {
  struct Token {
    int32_t id = 0;
    std::string text;
  };
  std::vector<Token> tokens;
  std::vector<std::string> texts;  // those without a token

  // nullptr: where it is `id`.
  const Token* find(int32_t id) const;
};

OutputMarkers find_output_markers(const wire::OutputParsing& parsing, const Tokenizer& tokenizer);

// Whether the prompt ends inside the reasoning, as templates write it that open it themselves. True: it ends behind it.
bool find_open_reasoning(const Tokenizer& tokenizer, std::span<const int32_t> prompt, wire::OutputParsing& parsing);

class OutputParser {
 public:
  OutputParser(const wire::OutputParsing& parsing, const OutputMarkers& markers);

  // `text`: whole UTF-8 characters, with the text of no marker's token in it.
  void push(std::string_view text, OutputEvents& out);
  void push_marker(std::string_view marker, OutputEvents& out);
  // Call once, at the end of the output.
  void finish(OutputEvents& out);
  bool in_reasoning() const { return reasoning_.in_reasoning(); }

 private:
  void handle(const std::vector<ReasoningParser::Part>& parts, OutputEvents& out);

  const OutputEvent::Kind reasoning_kind_;
  ReasoningParser reasoning_;
  std::unique_ptr<ToolParser> tools_;
};

}  // namespace millrace
