#include "api/reply_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

std::string& EventWriter::begin(std::string_view event) {
  if (!event.empty()) {
    out_ += "event: ";
    out_ += event;
    out_ += '\n';
  }
  if (form_ == StreamForm::kEvents) out_ += "data: ";
  begin_ = out_.size();
  return out_;
}

void EventWriter::end() {
  CHECK(begin_ <= out_.size());
  largest_ = std::max(largest_, out_.size() - begin_);
  if (!member_.empty()) {
    CHECK(out_.back() == '}');
    out_.pop_back();  // the object's '}'
    out_ += member_;
    out_ += '}';
  }
  out_ += form_ == StreamForm::kEvents ? "\n\n" : "\n";
}

void append_integer(std::string& out, int64_t value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

void append_ids(std::string& out, const std::vector<int32_t>& ids) {
  out += '[';
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i) out += ',';
    append_integer(out, ids[i]);
  }
  out += ']';
}

std::string openai_head(std::string_view object, std::string_view id, std::string_view model,
                        std::string_view version) {
  std::string out = "{\"id\":";
  json_append_string(out, id);
  fmt::format_to(std::back_inserter(out),
                 ",\"object\":\"{}\",\"created\":{},\"system_fingerprint\":\"millrace-{}\",\"model\":", object,
                 unix_seconds(), version);
  json_append_string(out, model);
  return out + ",\"choices\":[";
}

Status check_not_aborted(const ChoiceState& choice, std::string_view what) {
  CHECK(choice.finish);
  if (choice.finish->reason != wire::FinishReason::kAborted) return ok_status();
  return error(StatusCode::kCancelled, "the request was aborted before its {} was complete", what);
}

void append_end(std::string& out, const wire::Finish* finish, std::string_view reason) {
  out += ",\"finish_reason\":";
  if (!finish) {
    out += "null";
    return;
  }
  if (reason.empty()) {
    reason = finish->reason == wire::FinishReason::kLength    ? "length"
             : finish->reason == wire::FinishReason::kAborted ? "abort"
                                                              : "stop";
  }
  fmt::format_to(std::back_inserter(out), "\"{}\"", reason);
  out += ",\"matched_stop\":";
  if (finish->matched_token) {
    append_integer(out, *finish->matched_token);
  } else if (finish->matched_text) {
    json_append_string(out, *finish->matched_text);
  } else {
    out += "null";
  }
}

void append_usage(std::string& out, const wire::Usage& usage, std::optional<int64_t> audio_tokens) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},\"prompt_tokens_details\":{{"
                 "\"cached_tokens\":{}}},\"completion_tokens_details\":{{\"reasoning_tokens\":{}",
                 usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
                 usage.cached_tokens, usage.reasoning_tokens);
  if (audio_tokens) fmt::format_to(std::back_inserter(out), ",\"audio_tokens\":{}", *audio_tokens);
  out += "}}";
}

std::string make_id(std::string_view prefix) {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, generator(), generator() & 0xFFFFFFFF);
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace millrace::api
