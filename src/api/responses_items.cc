#include "api/responses_items.h"

#include <fmt/format.h>

#include "base/json.h"

namespace millrace::api {
namespace {

using EventKind = wire::OutputEvent::Kind;

}  // namespace

std::string& NumberedEvents::begin(std::string_view type) {
  std::string& out = writer_->begin(type);
  fmt::format_to(std::back_inserter(out), R"({{"type":"{}","sequence_number":{})", type, next_++);
  return out;
}

void NumberedEvents::end() { writer_->end(); }

void ResponseItems::append_logprobs(std::string& out, LogprobSpan logprobs) const {
  out += R"("logprobs":)";
  append_token_logprobs(out, names_, logprobs);
}

void ResponseItems::append_part(std::string& out, const Item& item) const {
  out += item.kind == Kind::kMessage ? R"({"type":"output_text","annotations":[],)" : R"({"type":"reasoning_text",)";
  if (item.kind == Kind::kMessage) {
    append_logprobs(out, item.logprobs);
    out += ',';
  }
  out += R"("text":)";
  json_append_string(out, item.text);
  out += '}';
}

void ResponseItems::append_item(std::string& out, const Item& item) const {
  const std::string_view status = item.state == State::kInProgress  ? "in_progress"
                                  : item.state == State::kCompleted ? "completed"
                                                                    : "incomplete";
  if (item.kind == Kind::kCall) {
    fmt::format_to(std::back_inserter(out),
                   R"({{"id":"{}","type":"function_call","status":"{}","call_id":"{}","name":)", item.id, status,
                   item.call_id);
    json_append_string(out, item.name);
    out += R"(,"arguments":)";
    json_append_string(out, item.text);
  } else {
    fmt::format_to(std::back_inserter(out), R"({{"id":"{}","type":"{}","status":"{}",{}"content":[)", item.id,
                   item.kind == Kind::kMessage ? "message" : "reasoning", status,
                   item.kind == Kind::kMessage ? R"("role":"assistant",)" : R"("summary":[],)");
    if (item.state != State::kInProgress) append_part(out, item);
    out += ']';
  }
  out += '}';
}

// Up to where what the event is about stands.
std::string& ResponseItems::begin(std::string_view type, const Item& item, NumberedEvents& events) const {
  std::string& out = events.begin(type);
  fmt::format_to(std::back_inserter(out), R"(,"item_id":"{}","output_index":{})", item.id, items_.size() - 1);
  if (item.kind != Kind::kCall) out += R"(,"content_index":0)";
  return out;
}

void ResponseItems::write_item(std::string_view type, NumberedEvents& events) const {
  std::string& out = events.begin(type);
  fmt::format_to(std::back_inserter(out), R"(,"output_index":{},"item":)", items_.size() - 1);
  append_item(out, items_.back());
  out += '}';
  events.end();
}

void ResponseItems::open(Kind kind, const std::string& name, NumberedEvents& events) {
  if (open_ && items_.back().kind == kind && kind != Kind::kCall) return;
  close(State::kCompleted, events);
  open_ = true;
  Item& item = items_.emplace_back();
  item.kind = kind;
  item.id = make_id(kind == Kind::kMessage ? "msg_" : kind == Kind::kReasoning ? "rs_" : "fc_");
  if (kind == Kind::kCall) item.call_id = make_id("call_");
  item.name = name;
  if (!events.streams()) return;
  write_item("response.output_item.added", events);
  if (kind == Kind::kCall) return;
  std::string& out = begin("response.content_part.added", item, events);
  out += R"(,"part":)";
  append_part(out, item);
  out += '}';
  events.end();
}

void ResponseItems::add_text(Kind kind, const std::string& text, LogprobSpan logprobs, NumberedEvents& events) {
  if (kind != Kind::kCall) open(kind, "", events);
  Item& item = items_.back();
  item.text += text;
  item.logprobs.insert(item.logprobs.end(), logprobs.begin(), logprobs.end());
  if (!events.streams()) return;
  std::string& out = begin(kind == Kind::kMessage     ? "response.output_text.delta"
                           : kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                                      : "response.function_call_arguments.delta",
                           item, events);
  out += R"(,"delta":)";
  json_append_string(out, text);
  if (kind == Kind::kMessage) {
    out += ',';
    append_logprobs(out, logprobs);
  }
  out += '}';
  events.end();
}

void ResponseItems::close(State state, NumberedEvents& events) {
  if (!open_) return;
  open_ = false;
  Item& item = items_.back();
  item.state = state;
  if (!events.streams()) return;
  std::string& out = begin(item.kind == Kind::kMessage     ? "response.output_text.done"
                           : item.kind == Kind::kReasoning ? "response.reasoning_text.done"
                                                           : "response.function_call_arguments.done",
                           item, events);
  if (item.kind == Kind::kCall) {
    out += R"(,"name":)";
    json_append_string(out, item.name);
    out += R"(,"arguments":)";
  } else {
    out += R"(,"text":)";
  }
  json_append_string(out, item.text);
  if (item.kind == Kind::kMessage) {
    out += ',';
    append_logprobs(out, item.logprobs);
  }
  out += '}';
  events.end();
  if (item.kind != Kind::kCall) {
    std::string& part = begin("response.content_part.done", item, events);
    part += R"(,"part":)";
    append_part(part, item);
    part += '}';
    events.end();
  }
  write_item("response.output_item.done", events);
}

void ResponseItems::add_event(const wire::OutputEvent& event, NumberedEvents& events) {
  switch (event.kind) {
    case EventKind::kText:
      if (!event.text.empty()) add_text(Kind::kMessage, event.text, {}, events);
      break;
    case EventKind::kReasoning:
      if (!event.text.empty()) add_text(Kind::kReasoning, event.text, {}, events);
      break;
    case EventKind::kCallBegin:
      skipped_ = view_.one_call && calls_ > 0;
      if (skipped_) break;
      ++calls_;
      open(Kind::kCall, event.text, events);
      break;
    case EventKind::kArguments:
      if (!skipped_) add_text(Kind::kCall, event.text, {}, events);
      break;
    case EventKind::kCallEnd:
      if (!skipped_) close(State::kCompleted, events);
      break;
  }
}

void ResponseItems::add(const ChoiceState& choice, NumberedEvents& events) {
  if (view_.parsed) {
    for (const wire::OutputEvent& event : choice.events) add_event(event, events);
  } else if (!choice.text.empty() || !choice.logprobs.empty()) {
    add_text(Kind::kMessage, choice.text, choice.logprobs, events);
  }
}

std::vector<std::string> ResponseItems::ids() const {
  std::vector<std::string> out;
  for (const Item& item : items_) out.push_back(item.id);
  return out;
}

void ResponseItems::finish(bool complete, NumberedEvents& events) {
  if (items_.empty()) open(Kind::kMessage, "", events);  // an answer has one, be it empty
  close(complete ? State::kCompleted : State::kIncomplete, events);
}

void ResponseItems::append(std::string& out) const {
  out += '[';
  for (const Item& item : items_) {
    if (&item != &items_.front()) out += ',';
    if (open_ && &item == &items_.back()) {
      Item broken_off = item;
      broken_off.state = State::kIncomplete;
      append_item(out, broken_off);
    } else {
      append_item(out, item);
    }
  }
  out += ']';
}

}  // namespace millrace::api
