#include "api/ollama_format.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "api/logprobs.h"
#include "base/json.h"

namespace millrace::api {
namespace {

using Kind = wire::OutputEvent::Kind;

constexpr std::string_view kCallIdPrefix = "call_";

void append_member(std::string& out, std::string_view name, std::string_view text) {
  fmt::format_to(std::back_inserter(out), "\"{}\":", name);
  json_append_string(out, text);
}

// 2026-03-01T12:00:00.123456Z
std::string now_text() {
  const auto now = std::chrono::floor<std::chrono::microseconds>(std::chrono::system_clock::now());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)),
                     (now - seconds).count());
}

// {"model":...,"created_at":...,
std::string head_of(const OllamaFormat::Shape& shape) {
  std::string out = "{";
  append_member(out, "model", shape.model);
  out += ',';
  append_member(out, "created_at", now_text());
  return out + ',';
}

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(std::max(0.0, seconds) * 1e9); }

// The prompt's time begins with the first step, the text's with the first token; what is left of the total was waiting.
void append_statistics(std::string& out, const ChoiceState& choice) {
  const std::string_view reason = choice.finish->reason == wire::FinishReason::kLength    ? "length"
                                  : choice.finish->reason == wire::FinishReason::kAborted ? "abort"
                                                                                          : "stop";
  const double total = choice.elapsed_seconds,
               first = choice.first_token_seconds > 0 ? choice.first_token_seconds : total;
  fmt::format_to(std::back_inserter(out),
                 R"(,"done":true,"done_reason":"{}","total_duration":{},"load_duration":0,"prompt_eval_count":{},)"
                 R"("prompt_eval_duration":{},"eval_count":{},"eval_duration":{}}})",
                 reason, nanoseconds(total), choice.usage.prompt_tokens,
                 nanoseconds(first - choice.usage.queue_seconds), choice.usage.completion_tokens,
                 nanoseconds(total - first));
}

}  // namespace

// Arguments are the object as the model wrote it, perhaps on several lines; between its strings a line's end is a
// space.
void OllamaFormat::take_call(Fresh& fresh) {
  std::ranges::replace_if(
      arguments_, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  fmt::format_to(std::back_inserter(fresh.calls), R"({}{{"id":"{}","function":{{"index":{},)",
                 fresh.calls.empty() ? "" : ",", make_id(kCallIdPrefix), calls_++);
  append_member(fresh.calls, "name", name_);
  fresh.calls += ",\"arguments\":" + std::exchange(arguments_, {}) + "}}";
}

OllamaFormat::Fresh OllamaFormat::take(const ChoiceState& choice) {
  Fresh fresh;
  if (!view_.parsed) fresh.content = choice.text;
  for (const wire::OutputEvent& event : choice.events) {
    switch (event.kind) {
      case Kind::kText:
        fresh.content += event.text;
        break;
      case Kind::kReasoning:
        fresh.thinking += event.text;
        break;
      case Kind::kCallBegin:
        skipped_ = view_.one_call && calls_ > 0;
        name_ = event.text;
        break;
      case Kind::kArguments:
        arguments_ += event.text;
        break;
      case Kind::kCallEnd:
        if (skipped_) {
          arguments_.clear();
        } else {
          take_call(fresh);
        }
        break;
    }
  }
  return fresh;
}

void OllamaFormat::append_members(std::string& out, const Fresh& fresh, const ChoiceState* logprobs_of) const {
  const bool chat = shape_.endpoint == OllamaEndpoint::kChat;
  if (chat) out += R"("message":{"role":"assistant",)";
  append_member(out, chat ? "content" : "response", fresh.content);
  if (!fresh.thinking.empty()) {
    out += ',';
    append_member(out, "thinking", fresh.thinking);
  }
  if (chat) {
    if (!fresh.calls.empty()) out += ",\"tool_calls\":[" + fresh.calls + "]";
    out += '}';
  }
  if (!shape_.logprobs || logprobs_of == nullptr) return;
  out += ",\"logprobs\":";
  append_token_logprobs(out, {.engine = engine_}, logprobs_of->logprobs);
}

void OllamaFormat::events(const ChoiceState& choice, EventWriter& writer) {
  const Fresh fresh = take(choice);
  if (!fresh.empty() || (shape_.logprobs && !choice.logprobs.empty())) {
    std::string& out = writer.begin();
    out += head_of(shape_);
    append_members(out, fresh, &choice);
    out += ",\"done\":false}";
    writer.end();
  }
  if (!choice.finish) return;
  std::string& out = writer.begin();
  out += head_of(shape_);
  append_members(out, {}, nullptr);
  append_statistics(out, choice);
  writer.end();
}

std::string OllamaFormat::choice(const ChoiceState& choice) {
  std::string out = head_of(shape_);
  append_members(out, take(choice), &choice);
  append_statistics(out, choice);
  return out;
}

std::string OllamaFormat::body(std::string choices, const wire::Usage& /*usage*/) { return choices; }

std::string OllamaFormat::error_event(const ApiError& error) const {
  return render_ollama_error(error, shape_.endpoint) + "\n";
}

http::Response OllamaFormat::error_response(const ApiError& error) const {
  return ollama_error_response(error, shape_.endpoint);
}

std::string OllamaFormat::loaded(const Shape& shape) {
  std::string out = head_of(shape);
  out +=
      shape.endpoint == OllamaEndpoint::kChat ? R"("message":{"role":"assistant","content":""})" : R"("response":"")";
  return out + R"(,"done":true,"done_reason":"load"})";
}

}  // namespace millrace::api
