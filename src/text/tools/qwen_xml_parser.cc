// <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ... </function> </tool_call>, of Qwen3-Coder. A value
// is the text itself, without the line ends next to its tags; what it is in JSON, the function's parameters decide.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/json.h"
#include "text/tools/call_parser.h"
#include "text/tools/python_literal.h"

namespace millrace {
namespace {

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";

void skip_space(std::string_view& text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
}

bool take(std::string_view& text, std::string_view part) {
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

// Up to `end`, which is taken too.
bool take_until(std::string_view& text, std::string_view end, std::string_view& out) {
  const std::size_t at = text.find(end);
  if (at == std::string_view::npos) return false;
  out = text.substr(0, at);
  text.remove_prefix(at + end.size());
  return true;
}

std::string_view without_line_ends(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

class QwenXmlParser final : public CallParser {
 public:
  explicit QwenXmlParser(ToolParserOptions options)
      : CallParser(options), text_parameters_(std::move(options.text_parameters)) {}

 private:
  enum class State { kText, kInside };

  void on_broken() override { state_ = State::kText; }

  void on_byte(char byte) override {
    if (state_ == State::kText) return text(byte);
    body_ += byte;
    hold(byte);
  }

  void on_marker(std::string_view marker) override {
    if (state_ == State::kInside && marker == kClose) {
      hold(marker);
      state_ = State::kText;
      std::vector<ToolCall> calls;
      return read_body(calls) ? complete(std::move(calls)) : broken();
    }
    if (state_ == State::kInside) broken();
    if (marker != kOpen) return text(marker);
    hold(marker);
    body_.clear();
    state_ = State::kInside;
  }

  bool read_body(std::vector<ToolCall>& out) const {
    std::string_view rest = body_, name, key, value;
    skip_space(rest);
    if (!take(rest, kFunction) || !take_until(rest, ">", name)) return false;
    std::string arguments = "{";
    for (skip_space(rest); take(rest, kParameter); skip_space(rest)) {
      if (!take_until(rest, ">", key) || !take_until(rest, kParameterEnd, value)) return false;
      if (arguments.size() > 1) arguments += ", ";
      json_append_string(arguments, key);
      arguments += ": ";
      append_value(arguments, name, key, without_line_ends(value));
    }
    if (!take(rest, kFunctionEnd)) return false;
    skip_space(rest);
    return rest.empty() && read_named_call(name, arguments + "}", names(), out);
  }

  // JSON as the model wrote it, unless the parameter is a text, or it is none. Models also write Python's literals,
  // which are read where a text is out of the question.
  void append_value(std::string& out, std::string_view name, std::string_view key, std::string_view value) const {
    using wire::ParameterKind;
    const auto is_listed = [&](ParameterKind kind) {
      return std::ranges::find(text_parameters_, wire::text_parameter(name, key, kind)) != text_parameters_.end();
    };
    const bool is_null = (value == "null" || value == "None") && is_listed(ParameterKind::kTextOrNull);
    const bool is_text = is_listed(ParameterKind::kText) || (!is_null && is_listed(ParameterKind::kTextOrNull));
    if (!is_text && parse_json(value).ok()) {
      out += value;
      return;
    }
    const bool no_text = is_null || is_listed(ParameterKind::kNoText);
    const std::optional<std::string> literal = no_text ? python_as_json(value) : std::nullopt;
    if (literal) {
      out += *literal;
    } else {
      json_append_string(out, value);
    }
  }

  const std::vector<std::string> text_parameters_;
  State state_ = State::kText;
  std::string body_;
};

}  // namespace

std::unique_ptr<ToolParser> make_qwen_xml_parser(ToolParserOptions options) {
  return std::make_unique<QwenXmlParser>(std::move(options));
}

}  // namespace millrace
