// How a request's output is read: the dialect of its tool calls and of its reasoning; and what is found in it. Parts of
// the messages of generating (wire/generation.h); text/tools/ has the parsers.
//
// Field numbers in the visit() functions are the wire format: append only. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::wire {

inline constexpr std::size_t kMaxTools = 128;          // of one request
inline constexpr std::size_t kMaxToolNameBytes = 128;  // as at Anthropic's; OpenAI's has 64

inline constexpr std::size_t kMaxTextParameters = 2048;  // of all tools of one request

// What is known of a parameter whose value is written without JSON's quotes.
enum class ParameterKind : uint8_t {
  kText,        // it is a string, whatever it reads as
  kTextOrNull,  // but where it is a bare null
  kNoText,      // it is none, and may be a boolean, null, an object or an array
};

// A parameter of a function, as one string: no name of a function has a '/', a '?' or a '!'.
inline std::string text_parameter(std::string_view function, std::string_view parameter,
                                  ParameterKind kind = ParameterKind::kText) {
  const char* mark = kind == ParameterKind::kText ? "" : kind == ParameterKind::kTextOrNull ? "?" : "!";
  return mark + std::string(function) + "/" + std::string(parameter);
}

enum class ToolDialect : uint8_t {
  kNone = 0,
  kQwen = 1,      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, Hermes' form too
  kLlama3 = 2,    // <|python_tag|>{"name": ..., "parameters": {...}}, or the object alone
  kMistral = 3,   // [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name[ARGS]{...}
  kJson = 4,      // the whole output is one such object, or an array of them: what a grammar makes it
  kQwenXml = 5,   // <tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>
  kDeepSeek = 6,  // <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>..., with a JSON object
};

enum class ReasoningDialect : uint8_t {
  kNone = 0,
  kThink = 1,      // <think>...</think>; it begins with the tag, in the output or at the end of the prompt
  kThinkOpen = 2,  // the same, and the output begins inside it, tag or not
};

struct OutputParsing {
  ToolDialect tools = ToolDialect::kNone;
  std::vector<std::string> tool_names;  // a call of another name is text; empty: any name
  ReasoningDialect reasoning = ReasoningDialect::kNone;
  bool reasoning_open = false;               // the output begins inside the reasoning
  bool reasoning_inline = false;             // the reasoning is text, tags included; no call is looked for in it
  bool guarded = false;                      // by a grammar, so that what begins as a call is one
  std::vector<std::string> text_parameters;  // of kQwenXml: text_parameter() of those that are known

  bool empty() const { return tools == ToolDialect::kNone && reasoning == ReasoningDialect::kNone; }

  template <typename V>
  void visit(V&& v) {
    v(1, tools), v(2, tool_names, kMaxTools), v(3, reasoning), v(4, reasoning_open), v(5, reasoning_inline);
    v(6, guarded), v(7, text_parameters, kMaxTextParameters);
  }
  friend bool operator==(const OutputParsing&, const OutputParsing&) = default;
};

// What is found in an output, in its sequence. A call is kCallBegin with its name, then its arguments in one or several
// fragments, then kCallEnd. The fragments joined are the JSON object as the model wrote it. Nothing is taken back: a
// call that is begun is well formed, and complete unless the output was cut off in it.
struct OutputEvent {
  enum class Kind : uint8_t { kText = 0, kReasoning = 1, kCallBegin = 2, kArguments = 3, kCallEnd = 4 };
  Kind kind = Kind::kText;
  std::string text;

  template <typename V>
  void visit(V&& v) {
    v(1, kind), v(2, text);
  }
  friend bool operator==(const OutputEvent&, const OutputEvent&) = default;
};

}  // namespace millrace::wire
