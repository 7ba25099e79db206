#include "api/messages_format.h"

#include <fmt/format.h>

#include <utility>

#include "api/messages_error.h"
#include "base/json.h"

namespace millrace::api {
namespace {

// Anthropic's input tokens are those that no cache had; the three kinds of input add up to the prompt. What its service
// alone has is null.
void append_message_usage(std::string& out, const wire::Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},)"
                 R"("output_tokens":{},"output_tokens_details":{{"thinking_tokens":{}}},"cache_creation":null,)"
                 R"("inference_geo":null,"server_tool_use":null,"service_tier":null}})",
                 usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens,
                 usage.reasoning_tokens);
}

}  // namespace

std::string MessagesFormat::head() const {
  std::string out = R"({"id":)";
  json_append_string(out, names_.id);
  out += R"(,"type":"message","role":"assistant","model":)";
  json_append_string(out, names_.model);
  return out + ',';
}

const std::vector<wire::OutputEvent>& MessagesFormat::events_of(const ChoiceState& choice) {
  if (view_.parsed) return choice.events;
  text_.front().text = choice.text;
  return text_;
}

void MessagesFormat::opening(const ChoiceState& choice, EventWriter& writer) {
  std::string& out = writer.begin("message_start");
  out += R"({"type":"message_start","message":)";
  out += head();
  out += R"("content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,"container":null,)";
  append_message_usage(out, choice.usage);
  out += "}}";
  writer.end();
  writer.begin("ping") += R"({"type":"ping"})";
  writer.end();
}

void MessagesFormat::events(const ChoiceState& choice, EventWriter& writer) {
  output_.stream(events_of(choice), writer);
  if (!choice.finish) return;
  output_.end(writer);
  std::string& out = writer.begin("message_delta");
  out += R"({"type":"message_delta","delta":{)";
  output_.append_stop(out, *choice.finish);
  out += "},";
  append_message_usage(out, choice.usage);
  out += '}';
  writer.end();
}

std::string MessagesFormat::last_event() const { return "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"; }

std::string MessagesFormat::error_event(const ApiError& error) const {
  return "event: error\ndata: " + render_messages_error(error, names_.request_id) + "\n\n";
}

std::string MessagesFormat::choice(const ChoiceState& choice) {
  std::string out = "\"content\":" + output_.content(events_of(choice)) + ",";
  output_.append_stop(out, *choice.finish);
  return out;
}

std::string MessagesFormat::body(std::string choices, const wire::Usage& usage) {
  std::string out = head();
  out += choices;
  out += ',';
  append_message_usage(out, usage);
  return out + "}";
}

http::Response MessagesFormat::error_response(const ApiError& error) const {
  return messages_error_response(error, names_.request_id);
}

http::Headers MessagesFormat::headers() const { return {{std::string(kRequestIdField), names_.request_id}}; }

}  // namespace millrace::api
