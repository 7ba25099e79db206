// <｜tool▁calls▁begin｜>, then calls, then <｜tool▁calls▁end｜>. A call of DeepSeek V3 and R1, and one of V3.1:
//
//   <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{...}\n```<｜tool▁call▁end｜>
//   <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
#include <utility>

#include "base/trimmed.h"
#include "text/tools/call_parser.h"

namespace millrace {
namespace {

constexpr std::string_view kCalls = "<｜tool▁calls▁begin｜>", kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCall = "<｜tool▁call▁begin｜>", kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kFence = "```json", kFenceEnd = "```";

class DeepSeekParser final : public CallParser {
 public:
  using CallParser::CallParser;

 private:
  // kCalls: between calls. kHead and kBody: before and behind a call's separator.
  enum class State { kText, kCalls, kHead, kBody };

  void on_broken() override { state_ = State::kText; }

  // Behind the last call the form has its end alone.
  bool ends_well() const override { return state_ == State::kCalls && some_; }

  void on_byte(char byte) override {
    switch (state_) {
      case State::kText:
        return text(byte);
      case State::kCalls:
        if (is_space(byte)) return hold(byte);
        break;
      case State::kHead:
      case State::kBody:
        (state_ == State::kHead ? head_ : body_) += byte;
        return hold(byte);
    }
    broken();
    text(byte);
  }

  void on_marker(std::string_view marker) override {
    if (state_ == State::kText && marker == kCalls) {
      some_ = false;
      return enter(marker, State::kCalls);
    }
    if (state_ == State::kCalls && marker == kCall) {
      head_.clear();
      body_.clear();
      return enter(marker, State::kHead);
    }
    if (state_ == State::kHead && marker == kSeparator) return enter(marker, State::kBody);
    if (state_ == State::kBody && marker == kCallEnd) return finish_call(marker);
    if (state_ == State::kCalls && some_ && marker == kCallsEnd) {
      enter(marker, State::kText);
      return complete({});
    }
    if (state_ != State::kText) broken();
    text(marker);
  }

  void enter(std::string_view marker, State next) {
    hold(marker);
    state_ = next;
  }

  void finish_call(std::string_view marker) {
    hold(marker);
    std::vector<ToolCall> calls;
    std::string_view name = trimmed(head_), arguments = trimmed(body_);
    if (!arguments.starts_with('{')) {
      const std::size_t end = arguments.find('\n');
      if (end == std::string_view::npos) return broken();
      name = trimmed(arguments.substr(0, end));
      arguments = trimmed(arguments.substr(end));
      if (!arguments.starts_with(kFence) || !arguments.ends_with(kFenceEnd) ||
          arguments.size() < kFence.size() + kFenceEnd.size()) {
        return broken();
      }
      arguments.remove_prefix(kFence.size());
      arguments.remove_suffix(kFenceEnd.size());
      arguments = trimmed(arguments);
    }
    if (!read_named_call(name, arguments, names(), calls)) return broken();
    state_ = State::kCalls;
    some_ = true;
    complete(std::move(calls));
  }

  State state_ = State::kText;
  bool some_ = false;  // a call of this list was given out
  std::string head_, body_;
};

}  // namespace

std::unique_ptr<ToolParser> make_deepseek_parser(ToolParserOptions options) {
  return std::make_unique<DeepSeekParser>(std::move(options));
}

}  // namespace millrace
