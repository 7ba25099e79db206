// {"name": ..., "parameters": {...}} of Llama 3.1 to 3.3, behind <|python_tag|> or as the whole output; several follow
// each other with a ';' or white space between them. Without the marker, only an object that begins as a call is held.
#include <algorithm>
#include <array>
#include <utility>

#include "text/tools/call_parser.h"

namespace millrace {
namespace {

constexpr std::array<std::string_view, 5> kMembers = {"name", "parameters", "arguments", "type", "id"};

class Llama3Parser final : public CallParser {
 public:
  using CallParser::CallParser;

 private:
  enum class State { kText, kBeforeJson, kJson, kBetween };

  void on_broken() override { state_ = State::kText; }
  bool ends_well() const override { return state_ == State::kBetween; }

  void on_byte(char byte) override {
    switch (state_) {
      case State::kText:
        if (byte == '{' && only_space_so_far()) return begin_json(byte);
        return text(byte);
      case State::kBeforeJson:
        if (is_space(byte)) return hold(byte);
        if (byte == '{') return begin_json(byte);
        break;
      case State::kJson:
        return on_json(byte);
      case State::kBetween:
        if (is_space(byte) || byte == ';') return hold(byte);
        if (byte == '{') return begin_json(byte);
        break;
    }
    broken();
    text(byte);
  }

  void on_marker(std::string_view marker) override {
    if (state_ == State::kJson && in_json_string()) {
      for (const char byte : marker) on_byte(byte);
      return;
    }
    if (state_ == State::kJson || state_ == State::kBeforeJson) broken();
    hold(marker);
    state_ = State::kBeforeJson;
  }

  void begin_json(char byte) {
    state_ = State::kJson;
    first_member_ = true;
    json_begins(byte);
  }

  void on_json(char byte) {
    const bool was_string = in_json_string();
    const JsonExtent::State state = json_goes_on(byte);
    if (state == JsonExtent::State::kBroken) return;
    if (state == JsonExtent::State::kComplete) return finish_json();
    if (first_member_ && was_string && !in_json_string()) {
      first_member_ = false;
      const std::string_view member = json().substr(json().find('"') + 1);
      const std::string_view name = member.substr(0, member.size() - 1);
      if (std::find(kMembers.begin(), kMembers.end(), name) == kMembers.end()) broken();
    }
  }

  void finish_json() {
    std::vector<ToolCall> calls;
    if (!read_tool_calls(json(), names(), calls)) return broken();
    state_ = State::kBetween;
    complete(std::move(calls));
  }

  State state_ = State::kText;
  bool first_member_ = false;  // its name has not come yet
};

}  // namespace

std::unique_ptr<ToolParser> make_llama3_parser(ToolParserOptions options) {
  return std::make_unique<Llama3Parser>(std::move(options));
}

}  // namespace millrace
