// <tool_call> {"name": ..., "arguments": {...}} </tool_call>, of Qwen 2.5 and 3, Hermes and others. A marker inside a
// JSON string is a part of the string.
#include <utility>

#include "text/tools/call_parser.h"

namespace millrace {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";

class QwenParser final : public CallParser {
 public:
  using CallParser::CallParser;

 private:
  enum class State { kText, kBeforeJson, kJson, kAfterJson };

  void on_broken() override { state_ = State::kText; }

  void on_byte(char byte) override {
    switch (state_) {
      case State::kText:
        return text(byte);
      case State::kBeforeJson:
        if (is_space(byte)) return hold(byte);
        if (byte == '{') {
          state_ = State::kJson;
          json_begins(byte);
          return;
        }
        break;
      case State::kJson:
        if (json_goes_on(byte) == JsonExtent::State::kComplete) finish_json();
        return;
      case State::kAfterJson:
        if (is_space(byte)) return hold(byte);
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
    if (state_ == State::kAfterJson && marker == kClose) {
      hold(marker);
      state_ = State::kText;
      return complete(std::exchange(ready_, {}));
    }
    if (state_ != State::kText) broken();
    if (marker != kOpen) return text(marker);
    hold(marker);
    state_ = State::kBeforeJson;
  }

  void finish_json() {
    ready_.clear();
    if (!was_streamed() && !read_tool_calls(json(), names(), ready_)) return broken();
    state_ = State::kAfterJson;
  }

  State state_ = State::kText;
  std::vector<ToolCall> ready_;
};

}  // namespace

std::unique_ptr<ToolParser> make_qwen_parser(ToolParserOptions options) {
  return std::make_unique<QwenParser>(std::move(options));
}

}  // namespace millrace
