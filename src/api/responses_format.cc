#include "api/responses_format.h"

#include <fmt/format.h>

#include "base/json.h"

namespace millrace::api {
namespace {

std::string_view error_code(const ApiError& error) {
  if (!error.code.empty()) return error.code;
  if (error.http_status == 429) return "rate_limit_exceeded";
  return error.http_status >= 500 ? "server_error" : "invalid_prompt";
}

void append_response_usage(std::string& out, const wire::Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},)"
                 R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
                 usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens,
                 usage.prompt_tokens + usage.completion_tokens);
}

// {"code","message"}, without its braces.
std::string code_and_message(const ApiError& error) {
  std::string out = R"("code":)";
  json_append_string(out, error_code(error));
  out += R"(,"message":)";
  json_append_string(out, error.message);
  return out;
}

}  // namespace

// An answer in the background that was aborted is cancelled, which is no reason of being incomplete.
std::string_view ResponsesFormat::incomplete_reason(const wire::Finish& finish) const {
  if (finish.reason == wire::FinishReason::kLength) return "max_output_tokens";
  if (finish.reason == wire::FinishReason::kAborted && !facts_.client) return "abort";
  return "";
}

std::string_view ResponsesFormat::status_of(const wire::Finish* finish, bool failed) const {
  if (failed) return "failed";
  if (!finish) return "in_progress";
  if (finish->reason == wire::FinishReason::kAborted && facts_.client) return "cancelled";
  return incomplete_reason(*finish).empty() ? "completed" : "incomplete";
}

void ResponsesFormat::append_response(std::string& out, const wire::Finish* finish, const wire::Usage& usage,
                                      std::string_view error) const {
  const std::string_view reason = finish ? incomplete_reason(*finish) : "";
  const std::string_view status = status_of(finish, error != "null");
  out += R"({"id":)";
  json_append_string(out, facts_.id);
  fmt::format_to(std::back_inserter(out), R"(,"object":"response","created_at":{},"status":"{}","completed_at":)",
                 created_at_, status);
  if (status == "completed") {
    append_integer(out, completed_at_);
  } else {
    out += "null";
  }
  fmt::format_to(std::back_inserter(out), R"(,"error":{},"incomplete_details":)", error);
  if (reason.empty()) {
    out += "null";
  } else {
    fmt::format_to(std::back_inserter(out), R"({{"reason":"{}"}})", reason);
  }
  out += R"(,"model":)";
  json_append_string(out, facts_.model);
  out += R"(,"output":)";
  items_.append(out);
  out += R"(,"usage":)";
  if (finish) {
    append_response_usage(out, usage);
  } else {
    out += "null";
  }
  out += ',';
  out += facts_.request_members;
  out += '}';
}

void ResponsesFormat::write_response(std::string_view type, const ChoiceState& choice) {
  std::string& out = events_.begin(type);
  out += R"(,"response":)";
  append_response(out, type == "response.created" || type == "response.in_progress" ? nullptr : &*choice.finish,
                  choice.usage);
  out += '}';
  events_.end();
}

void ResponsesFormat::opening(const ChoiceState& choice, EventWriter& out) {
  events_.attach(&out);
  write_response("response.created", choice);
  write_response("response.in_progress", choice);
}

void ResponsesFormat::events(const ChoiceState& choice, EventWriter& out) {
  events_.attach(&out);
  items_.add(choice, events_);
  if (!choice.finish) return;
  completed_at_ = unix_seconds();
  const bool complete = incomplete_reason(*choice.finish).empty();
  items_.finish(complete, events_);
  keep(*choice.finish, choice.usage);
  write_response(complete ? "response.completed" : "response.incomplete", choice);
}

// Before the client knows that it is there.
void ResponsesFormat::keep(const wire::Finish& finish, const wire::Usage& usage) const {
  if (!facts_.store) return;
  std::string body;
  append_response(body, &finish, usage);
  facts_.store(std::move(body), items_.ids(), Background::kNo);
}

std::string ResponsesFormat::error_event(const ApiError& error) const {
  const std::string shown = code_and_message(error);
  std::string param = "null";
  if (!error.param.empty()) {
    param.clear();
    json_append_string(param, error.param);
  }
  std::string out = fmt::format("event: error\ndata: {{\"type\":\"error\",\"sequence_number\":{},{},\"param\":{}}}\n\n",
                                events_.next(), shown, param);
  out +=
      fmt::format("event: response.failed\ndata: {{\"type\":\"response.failed\",\"sequence_number\":{},\"response\":",
                  events_.next() + 1);
  append_response(out, nullptr, {}, "{" + shown + "}");
  return out + "}\n\n";
}

// The client receives the id once it can be asked for.
void ResponsesFormat::accepted() {
  if (!facts_.client) return;
  std::string body;
  append_response(body, nullptr, {});
  facts_.store(body, {}, Background::kRunning);
  answered_ = true;
  facts_.client->send({.body = std::move(body)});
}

http::Response ResponsesFormat::error_response(const ApiError& error) const {
  if (facts_.client && answered_) {
    std::string body;
    append_response(body, nullptr, {}, "{" + code_and_message(error) + "}");
    facts_.store(std::move(body), {}, Background::kEnded);
  } else if (facts_.client) {
    facts_.client->send(api::error_response(error));
  }
  return api::error_response(error);
}

std::string ResponsesFormat::choice(const ChoiceState& choice) {
  finish_ = *choice.finish;
  completed_at_ = unix_seconds();
  items_.add(choice, events_);
  items_.finish(status_of(&finish_, false) == "completed", events_);
  return "";
}

std::string ResponsesFormat::body(std::string /*choices*/, const wire::Usage& usage) {
  std::string out;
  append_response(out, &finish_, usage);
  if (facts_.store) facts_.store(out, items_.ids(), facts_.client ? Background::kEnded : Background::kNo);
  return out;
}

}  // namespace millrace::api
