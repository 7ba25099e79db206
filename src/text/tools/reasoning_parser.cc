#include "text/tools/reasoning_parser.h"

#include <utility>

#include "base/status.h"
#include "text/tools/tool_parser.h"

namespace millrace {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

bool is_blank(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

}  // namespace

ReasoningParser::ReasoningParser(ReasoningParserOptions options)
    : keeps_form_(options.keeps_form),
      scanner_(std::move(options.text_markers)),
      state_(options.dialect == ReasoningDialect::kNone                        ? State::kContent
             : options.open || options.dialect == ReasoningDialect::kThinkOpen ? State::kReasoning
                                                                               : State::kStart) {}

void ReasoningParser::push(std::string_view text, std::vector<Part>& out) {
  std::vector<MarkerScanner::Symbol> symbols;
  scanner_.push(text, symbols);
  for (const MarkerScanner::Symbol& symbol : symbols) handle(symbol, out);
}

void ReasoningParser::push_marker(std::string_view marker, std::vector<Part>& out) {
  handle({scanner_.take_held(), false}, out);
  handle({std::string(marker), true}, out);
}

void ReasoningParser::finish(std::vector<Part>& out) {
  handle({scanner_.take_held(), false}, out);
  CHECK(text_.empty());
  text_ = std::exchange(space_, {});
  flush(in_reasoning() ? Part::Kind::kReasoning : Part::Kind::kContent, out);
}

void ReasoningParser::handle(const MarkerScanner::Symbol& symbol, std::vector<Part>& out) {
  CHECK(text_.empty());  // each symbol goes out before the next one
  if (!symbol.is_marker) return on_text(symbol.text, out);
  const std::string& marker = symbol.text;
  const bool opens = marker == kOpen && state_ == State::kStart;
  const bool inside = state_ == State::kReasoning && (marker == kOpen || marker == kClose);
  if (keeps_form_ && (opens || inside)) {
    text_ = std::exchange(space_, {});
    text_ += marker;
    begun_ = true;
    flush(Part::Kind::kReasoning, out);
    state_ = marker == kOpen ? State::kReasoning : State::kContent;
  } else if (marker == kOpen && (state_ == State::kStart || (state_ == State::kReasoning && !begun_))) {
    space_.clear();
    state_ = State::kReasoning;
  } else if (state_ == State::kReasoning) {
    if (marker != kClose) return on_text(marker, out);
    space_.clear();
    state_ = State::kBehind;
  } else if (marker == kOpen || marker == kClose) {
    on_text(marker, out);
  } else {
    text_ = std::exchange(space_, {});
    flush(Part::Kind::kContent, out);
    state_ = State::kContent;
    out.push_back({Part::Kind::kContentMarker, marker});
  }
}

// A state lasts until a byte or a marker ends it; what has come goes out as of its own kind.
void ReasoningParser::on_text(std::string_view text, std::vector<Part>& out) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (state_ == State::kContent) {
      text_ += text.substr(i);
      break;
    }
    on_byte(text[i]);
  }
  flush(in_reasoning() ? Part::Kind::kReasoning : Part::Kind::kContent, out);
}

void ReasoningParser::on_byte(char byte) {
  switch (state_) {
    case State::kStart:
      if (is_blank(byte)) return take_space(byte);
      state_ = State::kContent;
      break;
    case State::kReasoning:
      if (byte == '\n' && !begun_ && !keeps_form_) return;
      if (byte == '\n') return take_space(byte);
      begun_ = true;
      break;
    case State::kBehind:
      if (byte == '\n') return;
      state_ = State::kContent;
      break;
    case State::kContent:
      break;
  }
  text_ += std::exchange(space_, {});
  text_ += byte;
}

void ReasoningParser::take_space(char byte) {
  space_ += byte;
  if (space_.size() <= kMaxHeldSpace) return;
  text_ += space_.front();
  space_.erase(0, 1);
}

void ReasoningParser::flush(Part::Kind kind, std::vector<Part>& out) {
  if (!text_.empty()) out.push_back({kind, std::exchange(text_, {})});
}

}  // namespace millrace
