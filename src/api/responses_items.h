// ResponseItems: one parsed output as the output items of /v1/responses: reasoning, message, function_call. A stream
// ends with all of them, so all are kept.
//
// Owner: the format of the answer. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/logprobs.h"
#include "api/reply_format.h"
#include "api/tool_fields.h"
#include "wire/generation.h"
#include "wire/output_parsing.h"

namespace millrace::api {

// Events of a stream, numbered: begin() and end() as of EventWriter, the type and the number written. Without a writer
// nothing is written.
class NumberedEvents {
 public:
  void attach(EventWriter* writer) { writer_ = writer; }
  bool streams() const { return writer_ != nullptr; }
  std::string& begin(std::string_view type);
  void end();
  int64_t next() const { return next_; }

 private:
  EventWriter* writer_ = nullptr;
  int64_t next_ = 0;
};

class ResponseItems {
 public:
  ResponseItems(const OutputView& view, TokenNames names) : view_(view), names_(names) {}

  std::vector<std::string> ids() const;
  // What is new in `choice`. With a stream, its events are written: output_item, content_part, output_text,
  // reasoning_text and function_call_arguments.
  void add(const ChoiceState& choice, NumberedEvents& events);
  // The end: closes the item under way. `complete`: the model came to its end; else that item is incomplete.
  void finish(bool complete, NumberedEvents& events);
  // The array of items. One that is under way was broken off.
  void append(std::string& out) const;

 private:
  enum class Kind : uint8_t { kMessage, kReasoning, kCall };
  enum class State : uint8_t { kInProgress, kCompleted, kIncomplete };
  struct Item {
    Kind kind = Kind::kMessage;
    State state = State::kInProgress;
    std::string id, call_id, name;  // the last two: of a call
    std::string text;               // of a call: its arguments
    std::vector<wire::TokenLogprobs> logprobs;
  };

  void add_event(const wire::OutputEvent& event, NumberedEvents& events);
  void add_text(Kind kind, const std::string& text, LogprobSpan logprobs, NumberedEvents& events);
  void open(Kind kind, const std::string& name, NumberedEvents& events);
  void close(State state, NumberedEvents& events);
  std::string& begin(std::string_view type, const Item& item, NumberedEvents& events) const;
  void write_item(std::string_view type, NumberedEvents& events) const;
  void append_item(std::string& out, const Item& item) const;
  void append_part(std::string& out, const Item& item) const;
  void append_logprobs(std::string& out, LogprobSpan logprobs) const;

  const OutputView view_;
  const TokenNames names_;
  std::vector<Item> items_;
  bool open_ = false;  // the last item
  int calls_ = 0;
  bool skipped_ = false;  // the call under way is left out
};

}  // namespace millrace::api
