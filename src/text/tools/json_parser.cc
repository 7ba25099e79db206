// An output that is one call, {"name": ..., "arguments": {...}}, or an array of them: what a grammar makes it where the
// request asks for a call.
#include <utility>

#include "text/tools/call_parser.h"

namespace millrace {
namespace {

class JsonParser final : public CallParser {
 public:
  using CallParser::CallParser;

 private:
  enum class State { kText, kJson, kAfterJson };

  void on_broken() override { state_ = State::kText; }
  bool ends_well() const override { return state_ == State::kAfterJson; }

  void on_byte(char byte) override {
    if (state_ == State::kJson) {
      if (json_goes_on(byte) == JsonExtent::State::kComplete) finish_json();
    } else if (state_ == State::kText && only_space_so_far() && (byte == '{' || byte == '[')) {
      state_ = State::kJson;
      json_begins(byte);
    } else if (state_ == State::kAfterJson && is_space(byte)) {
      hold(byte);
    } else {
      if (state_ == State::kAfterJson) broken();
      text(byte);
    }
  }

  void on_marker(std::string_view marker) override {
    for (const char byte : marker) on_byte(byte);
  }

  void finish_json() {
    std::vector<ToolCall> calls;
    if (!was_streamed() && !read_tool_calls(json(), names(), calls)) return broken();
    state_ = State::kAfterJson;
    complete(std::move(calls));
  }

  State state_ = State::kText;
};

}  // namespace

std::unique_ptr<ToolParser> make_json_parser(ToolParserOptions options) {
  return std::make_unique<JsonParser>(std::move(options));
}

}  // namespace millrace
