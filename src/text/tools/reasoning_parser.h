// ReasoningParser: an output, as it comes, to reasoning and content.
//
// A push state machine like ToolParser (text/tools/tool_parser.h), before it: what is no reasoning goes on, markers
// included. Reasoning stands at the output's start, once; the tags elsewhere are text. Line ends next to the tags
// belong to the form and are dropped. Reasoning that the end cuts off is reasoning.
//
// Owned by one request; one thread at a time. Memory: kMaxHeldSpace and a marker's length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tools/dialect.h"
#include "text/tools/marker_scanner.h"

namespace millrace {

struct ReasoningParserOptions {
  ReasoningDialect dialect = ReasoningDialect::kNone;
  bool open = false;                      // the output begins inside the reasoning
  bool keeps_form = false;                // the tags and the line ends next to them are parts of the reasoning
  std::vector<std::string> text_markers;  // of markers_of(dialect), those that the tokenizer has no token for
};

class ReasoningParser {
 public:
  struct Part {
    enum class Kind : uint8_t { kReasoning, kContent, kContentMarker };
    Kind kind = Kind::kContent;
    std::string text;
  };

  explicit ReasoningParser(ReasoningParserOptions options);

  // `text`: whole UTF-8 characters. `marker`: one that came as a token, of any dialect.
  void push(std::string_view text, std::vector<Part>& out);
  void push_marker(std::string_view marker, std::vector<Part>& out);
  void finish(std::vector<Part>& out);
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State { kStart, kReasoning, kBehind, kContent };
  void handle(const MarkerScanner::Symbol& symbol, std::vector<Part>& out);
  void on_text(std::string_view text, std::vector<Part>& out);
  void on_byte(char byte);
  void take_space(char byte);
  void flush(Part::Kind kind, std::vector<Part>& out);

  const bool keeps_form_;
  MarkerScanner scanner_;
  State state_;
  bool begun_ = false;  // the reasoning has text
  std::string text_;    // of the push under way
  std::string space_;   // that a tag may take along
};

}  // namespace millrace
