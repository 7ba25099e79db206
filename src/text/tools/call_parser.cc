#include "text/tools/call_parser.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace millrace {

CallParser::CallParser(ToolParserOptions options) : options_(std::move(options)), scanner_(options_.text_markers) {}

void CallParser::push(std::string_view text, OutputEvents& out) {
  std::vector<MarkerScanner::Symbol> symbols;
  scanner_.push(text, symbols);
  handle(std::move(symbols), out);
}

// The tokenizer has a token for this marker. What the scanner holds came before it, and could only have become a marker
// together with more text.
void CallParser::push_marker(std::string_view marker, OutputEvents& out) {
  handle({{scanner_.take_held(), false}, {std::string(marker), true}}, out);
}

void CallParser::finish(OutputEvents& out) {
  handle({{scanner_.take_held(), false}}, out);
  // `out` is the caller's, for this push alone: events of the dialect go there until flush_text().
  out_ = &out;
  // Guarded, what is held is no text: the beginning of a call whose arguments have not begun, or the form behind one.
  if (options_.guarded && !held_.empty()) {
    held_.clear();
    space_.clear();
  }
  if (!held_.empty() && !ends_well()) broken();
  // White space that a call took along stays with it; behind text it is text.
  if (!space_follows_call_) text_ += space_;
  flush_text();
}

void CallParser::handle(std::vector<MarkerScanner::Symbol> symbols, OutputEvents& out) {
  out_ = &out;
  for (const MarkerScanner::Symbol& symbol : symbols) {
    if (symbol.is_marker) {
      on_marker(symbol.text);
    } else {
      for (const char byte : symbol.text) on_byte(byte);
    }
  }
  flush_text();
}

// Text first, then arguments: both are collected byte by byte and become one event each. The text of a push comes
// before the call that begins in it, and begin_call() and end_call() flush, so that the sequence of the output is kept.
void CallParser::flush_text() {
  CHECK(out_ != nullptr);  // only inside of a push
  add_event(*out_, OutputEvent::Kind::kText, std::exchange(text_, {}));
  if (!arguments_.empty()) out_->push_back({OutputEvent::Kind::kArguments, std::exchange(arguments_, {})});
}

// White space is kept back until it is known what follows: a call takes it along.
void CallParser::text(char byte) {
  if (is_space(byte)) {
    space_ += byte;
    // A stream of white space must not be held without end; the oldest of it is text then.
    if (space_.size() > kMaxHeldSpace) {
      text_ += space_.front();
      space_.erase(0, 1);
    }
    return;
  }
  text_ += space_;
  space_.clear();
  space_follows_call_ = false;
  only_space_so_far_ = false;
  text_ += byte;
}

void CallParser::text(std::string_view bytes) {
  for (const char byte : bytes) text(byte);
}

// The form of a call alone, white space between its parts, can be long too.
void CallParser::hold(char byte) {
  held_ += byte;
  if (held_.size() > kMaxToolCallBytes) broken();
}

bool CallParser::json_begins(char byte, std::string name) {
  CHECK(byte == '{' || byte == '[');
  json_ = JsonExtent();
  stream_ = CallStream(std::move(name));
  json_begin_ = held_.size();
  return json_goes_on(byte) != JsonExtent::State::kBroken;
}

JsonExtent::State CallParser::json_goes_on(char byte) {
  held_ += byte;
  // CallStream compares the depths before and after the byte, so the state is copied; it is two words.
  const JsonExtent before = json_;
  const JsonExtent::State state = held_.size() > kMaxToolCallBytes ? JsonExtent::State::kBroken : json_.push(byte);
  if (state == JsonExtent::State::kBroken) {
    broken();
  } else if (options_.guarded) {
    stream(byte, before);
  }
  return state;
}

// From the first byte of the arguments on they go out as they come, and nothing is held for them: a grammar guarantees
// the form, so they cannot turn out to be text any more.
void CallParser::stream(char byte, const JsonExtent& before) {
  using Found = CallStream::Found;
  const Found found = stream_.push(byte, before, json_);
  if (found == Found::kNothing || (found == Found::kArgumentsBegin && !begin_call()) || !call_open_) return;
  arguments_ += byte;
  held_.clear();
  json_begin_ = 0;
  if (found == Found::kArgumentsEnd) end_call();
}

// False: it is none of the calls that are looked for, and stays held.
bool CallParser::begin_call() {
  const std::string& name = stream_.name();
  const bool wanted = names().empty() || std::find(names().begin(), names().end(), name) != names().end();
  if (!wanted || !is_tool_name(name) || calls_ == kMaxToolCalls) return false;
  CHECK(!call_open_);
  ++calls_;
  flush_text();
  out_->push_back({OutputEvent::Kind::kCallBegin, name});
  space_.clear();
  streamed_ = call_open_ = true;
  return true;
}

void CallParser::end_call() {
  if (!std::exchange(call_open_, false)) return;
  flush_text();
  out_->push_back({OutputEvent::Kind::kCallEnd, {}});
}

// Over kMaxToolCalls it is text, as what is no call is.
void CallParser::complete(std::vector<ToolCall> calls) {
  CHECK(!call_open_ && !(streamed_ && !calls.empty()));
  if (calls_ + calls.size() > kMaxToolCalls) return broken();
  calls_ += calls.size();
  flush_text();
  for (ToolCall& call : calls) {
    out_->push_back({OutputEvent::Kind::kCallBegin, std::move(call.name)});
    out_->push_back({OutputEvent::Kind::kArguments, std::move(call.arguments)});
    out_->push_back({OutputEvent::Kind::kCallEnd, {}});
  }
  held_.clear();
  streamed_ = false;
  space_.clear();
  space_follows_call_ = true;
}

void CallParser::broken() {
  end_call();
  streamed_ = false;
  // Taken out before on_broken(): text() below may be followed by a further call in the same push, and held_ is empty
  // then.
  const std::string held = std::exchange(held_, {});
  on_broken();
  text(held);
}

}  // namespace millrace
