#include "text/tools/output_parser.h"

#include <algorithm>

namespace millrace {
namespace {

std::vector<std::string> common_texts(const OutputMarkers& markers, std::span<const std::string_view> dialect) {
  std::vector<std::string> out;
  for (const std::string& text : markers.texts) {
    if (std::find(dialect.begin(), dialect.end(), text) != dialect.end()) out.push_back(text);
  }
  return out;
}

}  // namespace

const OutputMarkers::Token* OutputMarkers::find(int32_t id) const {
  const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const Token& token) { return token.id == id; });
  return found == tokens.end() ? nullptr : &*found;
}

OutputMarkers find_output_markers(const wire::OutputParsing& parsing, const Tokenizer& tokenizer) {
  OutputMarkers markers;
  for (const auto dialect : {markers_of(parsing.tools), markers_of(parsing.reasoning)}) {
    for (const std::string_view marker : dialect) {
      const std::optional<int32_t> id = tokenizer.id_of(marker);
      if (id && tokenizer.is_added(*id)) {
        markers.tokens.push_back({*id, std::string(marker)});
      } else {
        markers.texts.emplace_back(marker);
      }
    }
  }
  return markers;
}

bool find_open_reasoning(const Tokenizer& tokenizer, std::span<const int32_t> prompt, wire::OutputParsing& parsing) {
  if (parsing.reasoning == ReasoningDialect::kNone) return false;
  // A tag of ordinary tokens has as many as it has bytes, at most; line ends may follow it.
  constexpr std::size_t kTailTokens = 24;
  std::string tail = tokenizer.decode(prompt.last(std::min(prompt.size(), kTailTokens)), false);
  tail.resize(tail.find_last_not_of(" \n\r\t") + 1);
  if (tail.ends_with("<think>")) parsing.reasoning_open = true;
  // The prompt has closed what is open at the start otherwise.
  const bool closed = tail.ends_with("</think>");
  if (closed) parsing.reasoning = ReasoningDialect::kThink;
  return closed;
}

OutputParser::OutputParser(const wire::OutputParsing& parsing, const OutputMarkers& markers)
    : reasoning_kind_(parsing.reasoning_inline ? OutputEvent::Kind::kText : OutputEvent::Kind::kReasoning),
      reasoning_({parsing.reasoning, parsing.reasoning_open, parsing.reasoning_inline,
                  common_texts(markers, markers_of(parsing.reasoning))}),
      tools_(make_tool_parser({parsing.tools, parsing.tool_names, common_texts(markers, markers_of(parsing.tools)),
                               parsing.guarded, parsing.text_parameters})) {}

void OutputParser::push(std::string_view text, OutputEvents& out) {
  std::vector<ReasoningParser::Part> parts;
  reasoning_.push(text, parts);
  handle(parts, out);
}

void OutputParser::push_marker(std::string_view marker, OutputEvents& out) {
  std::vector<ReasoningParser::Part> parts;
  reasoning_.push_marker(marker, parts);
  handle(parts, out);
}

void OutputParser::finish(OutputEvents& out) {
  std::vector<ReasoningParser::Part> parts;
  reasoning_.finish(parts);
  handle(parts, out);
  tools_->finish(out);
}

void OutputParser::handle(const std::vector<ReasoningParser::Part>& parts, OutputEvents& out) {
  for (const ReasoningParser::Part& part : parts) {
    switch (part.kind) {
      case ReasoningParser::Part::Kind::kReasoning:
        add_event(out, reasoning_kind_, part.text);
        break;
      case ReasoningParser::Part::Kind::kContent:
        tools_->push(part.text, out);
        break;
      case ReasoningParser::Part::Kind::kContentMarker:
        tools_->push_marker(part.text, out);
        break;
    }
  }
}

}  // namespace millrace
