// ToolParser: the text of an output, as it comes, to text and tool calls.
//
// A push state machine: bytes and markers in, events out. Where the tokenizer has a marker as one added token, only
// that token counts (push_marker) and text that spells it is text; the other markers are found in the text.
//
// A call is held until it is complete and well formed, and then given out. What turns out to be no call, is cut off by
// the end, or is over kMaxToolCallBytes, is text, byte for byte. Where a grammar guarantees that what begins as a call
// is one (`guarded`), it is given out from its first argument on; one that the end cuts off ends there, and before its
// arguments it is dropped. White space directly before a call, and behind the last one, belongs to the form and is
// dropped. The events, joined, do not depend on how the output is cut into pushes. Time is linear in the bytes; memory
// is kMaxToolCallBytes and a call's copy.
//
// Owned by one request; one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tools/dialect.h"
#include "text/tools/output_event.h"

namespace millrace {

inline constexpr std::size_t kMaxToolCallBytes = 256u << 10;  // of one call, or of one array of calls
inline constexpr std::size_t kMaxHeldSpace = 64;              // white space that may stand before a call

class ToolParser {
 public:
  virtual ~ToolParser() = default;
  // `text`: whole UTF-8 characters.
  virtual void push(std::string_view text, OutputEvents& out) = 0;
  virtual void push_marker(std::string_view marker, OutputEvents& out) = 0;
  // Call once, at the end of the output.
  virtual void finish(OutputEvents& out) = 0;
};

struct ToolParserOptions {
  ToolDialect dialect = ToolDialect::kNone;
  std::vector<std::string> names;            // empty: any
  std::vector<std::string> text_markers;     // of markers_of(dialect), those that the tokenizer has no token for
  bool guarded = false;                      // by a grammar: kQwen, kMistral and kJson
  std::vector<std::string> text_parameters;  // of kQwenXml: wire::text_parameter() of those that are known
};

// kNone: everything is text.
std::unique_ptr<ToolParser> make_tool_parser(ToolParserOptions options);

// Those of each dialect.
std::unique_ptr<ToolParser> make_qwen_parser(ToolParserOptions options);
std::unique_ptr<ToolParser> make_llama3_parser(ToolParserOptions options);
std::unique_ptr<ToolParser> make_mistral_parser(ToolParserOptions options);
std::unique_ptr<ToolParser> make_json_parser(ToolParserOptions options);
std::unique_ptr<ToolParser> make_qwen_xml_parser(ToolParserOptions options);
std::unique_ptr<ToolParser> make_deepseek_parser(ToolParserOptions options);

}  // namespace millrace
