// [TOOL_CALLS][{"name": ..., "arguments": {...}, "id": ...}, ...] of Mistral's older tokenizers, and of the newer ones
// [TOOL_CALLS]name[ARGS]{...} or [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}, repeated. [ARGS] may be left out.
#include <utility>

#include "text/tools/call_parser.h"

namespace millrace {
namespace {

constexpr std::string_view kCalls = "[TOOL_CALLS]";
constexpr std::string_view kArguments = "[ARGS]";
constexpr std::string_view kCallId = "[CALL_ID]";

class MistralParser final : public CallParser {
 public:
  using CallParser::CallParser;

 private:
  enum class State { kText, kBegin, kName, kId, kBeforeJson, kJson, kBetween };

  void on_broken() override { state_ = State::kText; }
  bool ends_well() const override { return state_ == State::kBetween; }

  void on_byte(char byte) override {
    switch (state_) {
      case State::kText:
        return text(byte);
      case State::kBegin:
        if (is_space(byte)) return hold(byte);
        if (byte == '[') return begin_json(byte);
        if (is_tool_name_byte(byte)) return begin_name(byte);
        break;
      case State::kName:
        if (byte == '{') return begin_json(byte);
        if (is_space(byte)) {
          state_ = State::kBeforeJson;
          return hold(byte);
        }
        if (is_tool_name_byte(byte) && name_.size() < kMaxToolNameBytes) {
          name_ += byte;
          return hold(byte);
        }
        break;
      case State::kId:
        if (is_tool_name_byte(byte)) return hold(byte);
        break;
      case State::kBeforeJson:
        if (is_space(byte)) return hold(byte);
        if (byte == '{') return begin_json(byte);
        break;
      case State::kJson:
        if (json_goes_on(byte) == JsonExtent::State::kComplete) finish_json();
        return;
      case State::kBetween:
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
    const bool named = state_ == State::kName;
    if (marker == kArguments && (named || state_ == State::kId)) return mark(marker, State::kBeforeJson);
    if (marker == kCallId && named) return mark(marker, State::kId);
    if (state_ == State::kBetween && marker == kCalls) return mark(marker, State::kBegin);
    if (state_ != State::kText) broken();
    if (marker != kCalls) return text(marker);
    mark(marker, State::kBegin);
  }

  void mark(std::string_view marker, State next) {
    hold(marker);
    state_ = next;
    if (next == State::kBegin) name_.clear();
  }

  void begin_name(char byte) {
    state_ = State::kName;
    name_ = byte;
    hold(byte);
  }

  void begin_json(char byte) {
    state_ = State::kJson;
    json_begins(byte, name_);
  }

  void finish_json() {
    std::vector<ToolCall> calls;
    const bool good = was_streamed()  ? true
                      : name_.empty() ? read_tool_calls(json(), names(), calls)
                                      : read_named_call(name_, json(), names(), calls);
    if (!good) return broken();
    state_ = State::kBetween;
    complete(std::move(calls));
  }

  State state_ = State::kText;
  std::string name_;
};

}  // namespace

std::unique_ptr<ToolParser> make_mistral_parser(ToolParserOptions options) {
  return std::make_unique<MistralParser>(std::move(options));
}

}  // namespace millrace
