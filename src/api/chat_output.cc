#include "api/chat_output.h"

#include <fmt/format.h>

#include <utility>

#include "api/reply_format.h"
#include "base/json.h"

namespace millrace::api {
namespace {

using Kind = wire::OutputEvent::Kind;

constexpr std::string_view kCallIdPrefix = "call_";

std::string member(std::string_view key, std::string_view text) {
  std::string out = fmt::format("\"{}\":", key);
  json_append_string(out, text);
  return out;
}

}  // namespace

void ChatOutput::begin_call(const std::string& name, std::vector<std::string>& out) {
  skipped_ = view_.one_call && calls_ > 0;
  if (skipped_) return;
  std::string delta = fmt::format("\"tool_calls\":[{{\"index\":{},\"id\":\"{}\",\"type\":\"function\",\"function\":{{",
                                  calls_++, make_id(kCallIdPrefix));
  out.push_back(delta + member("name", name) + ",\"arguments\":\"\"}}]");
}

void ChatOutput::flush_reasoning(std::vector<std::string>& out) {
  if (!reasoning_.empty()) out.push_back(member("reasoning_content", std::exchange(reasoning_, {})));
}

std::vector<std::string> ChatOutput::deltas(const std::vector<wire::OutputEvent>& events, bool last) {
  std::vector<std::string> out;
  for (const wire::OutputEvent& event : events) {
    if (event.kind == Kind::kReasoning) {
      if (view_.reasoning_shown) reasoning_ += event.text;
      if (view_.reasoning_streamed) flush_reasoning(out);
      continue;
    }
    flush_reasoning(out);
    switch (event.kind) {
      case Kind::kText:
        out.push_back(member("content", event.text));
        break;
      case Kind::kCallBegin:
        begin_call(event.text, out);
        break;
      case Kind::kArguments:
        if (skipped_) break;
        out.push_back(fmt::format("\"tool_calls\":[{{\"index\":{},\"function\":{{", calls_ - 1) +
                      member("arguments", event.text) + "}}]");
        break;
      case Kind::kReasoning:
      case Kind::kCallEnd:
        break;
    }
  }
  if (last) flush_reasoning(out);
  return out;
}

std::string ChatOutput::message(const std::vector<wire::OutputEvent>& events) {
  std::string content, reasoning, calls, arguments;
  bool open = false;
  const auto end_call = [&] {
    if (!skipped_) calls += member("arguments", arguments) + "}}";
    arguments.clear();
    open = false;
  };
  for (const wire::OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kText:
        content += event.text;
        break;
      case Kind::kReasoning:
        if (view_.reasoning_shown) reasoning += event.text;
        break;
      case Kind::kCallBegin:
        skipped_ = view_.one_call && calls_ > 0;
        open = true;
        if (skipped_) break;
        calls += fmt::format("{}{{\"id\":\"{}\",\"type\":\"function\",\"function\":{{", calls_++ ? "," : "",
                             make_id(kCallIdPrefix));
        calls += member("name", event.text) + ",";
        break;
      case Kind::kArguments:
        arguments += event.text;
        break;
      case Kind::kCallEnd:
        end_call();
        break;
    }
  }
  if (open) end_call();  // it was cut off
  std::string out = content.empty() && calls_ > 0 ? "\"content\":null" : member("content", content);
  if (view_.reasoning_field) {
    out += reasoning.empty() ? ",\"reasoning_content\":null" : "," + member("reasoning_content", reasoning);
  }
  if (calls_ > 0) out += ",\"tool_calls\":[" + calls + "]";
  return out;
}

std::string_view ChatOutput::finish_reason(const wire::Finish& finish) const {
  const bool complete = finish.reason == wire::FinishReason::kStop && !finish.matched_text;
  return calls_ > 0 && complete ? "tool_calls" : "";
}

}  // namespace millrace::api
