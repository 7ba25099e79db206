#include "api/responses_request.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "api/chat_prompt.h"
#include "api/content_blocks.h"
#include "api/responses_input.h"
#include "api/responses_tools.h"
#include "api/sampling_fields.h"
#include "api/translated_chat.h"
#include "api/unserved_fields.h"
#include "base/ordered_json.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Fields that a chat has under the same name, apart from those of every endpoint; the second line is this server's.
constexpr const char* kSameFields[] = {"max_output_tokens",
                                       "temperature",
                                       "top_p",
                                       "stream",  //
                                       "top_k",
                                       "stop"};

Status refuse_conversation(const Json& body) {
  if (!json_find(body, "conversation")) return ok_status();
  return error(StatusCode::kUnsupported,
               "conversation is not supported; wanted previous_response_id, or the earlier items in input");
}

// What has no client that waits for it is found by its own id, when it is stored.
Status read_background(const Json& body, bool& background) {
  RETURN_IF_ERROR(json_read(body, "background", background));
  if (!background) return ok_status();
  bool stream = false, store = true;
  RETURN_IF_ERROR(json_read(body, "stream", stream));
  RETURN_IF_ERROR(json_read(body, "store", store));
  if (!store) return invalid_argument("background is true, and store is false; wanted a response that is stored");
  for (const char* key : {"rid", "request_id"}) {
    if (!json_find(body, key)) continue;
    return error(StatusCode::kUnsupported,
                 "{} is not supported beside background: true; wanted nothing: the answer's "
                 "own id ends it by /cancel",
                 key);
  }
  if (stream) {
    return error(StatusCode::kUnsupported,
                 "background is true, and so is stream, which is not supported; wanted one of them: an answer in the "
                 "background is read by GET");
  }
  return ok_status();
}

// The effort is that of a chat.
Status translate_reasoning(const Json& body, OrderedJson& chat) {
  const Json* reasoning = json_find(body, "reasoning");
  if (!reasoning) return ok_status();
  if (!reasoning->is_object()) return wrong_type("reasoning", *reasoning, "an object");
  // "auto" is whatever summary the model has, and here it has none.
  static const Json kAuto = "auto";
  for (const char* key : {"summary", "generate_summary"}) {
    RETURN_IF_ERROR(refuse_unless(*reasoning, key, kAuto).with_prefix("reasoning"));
  }
  std::string effort;
  RETURN_IF_ERROR(json_read(*reasoning, "effort", effort).with_prefix("reasoning"));
  if (effort.empty()) return ok_status();
  RETURN_IF_ERROR(check_effort(effort, "reasoning.effort"));
  chat["reasoning_effort"] = effort;
  return ok_status();
}

// The format is read by read_responses_grammar().
Status check_text(const Json& body) {
  const Json* text = json_find(body, "text");
  if (!text) return ok_status();
  if (!text->is_object()) return wrong_type("text", *text, "an object");
  static const Json kMedium = "medium";
  return refuse_unless(*text, "verbosity", kMedium).with_prefix("text");
}

// Reasoning is not encrypted here: its items carry their text, which is what a client sends back.
Status read_include(const Json& body, bool& logprobs) {
  const Json* include = json_find(body, "include");
  if (!include) return ok_status();
  if (!include->is_array()) return wrong_type("include", *include, "an array of strings");
  for (std::size_t i = 0; i < include->size(); ++i) {
    const Json& entry = (*include)[i];
    if (entry == "message.output_text.logprobs") {
      logprobs = true;
    } else if (entry != "reasoning.encrypted_content") {
      return error(StatusCode::kUnsupported,
                   "include[{}] is {}; wanted message.output_text.logprobs or reasoning.encrypted_content", i,
                   entry.is_string() ? "'" + entry.get<std::string>().substr(0, kShownBytes) + "'"
                                     : fmt::format("of type {}", json_type_name(entry)));
    }
  }
  return ok_status();
}

Status read_logprobs(const Json& body, std::optional<int64_t>& out) {
  bool logprobs = false;
  RETURN_IF_ERROR(read_include(body, logprobs));
  std::optional<int64_t> top;
  RETURN_IF_ERROR(read_integer(body, "top_logprobs", 0, kMaxClientTopLogprobs, top));
  if (top.value_or(0) > 0 && !logprobs) {
    return invalid_argument("top_logprobs is {} without message.output_text.logprobs in include; wanted both", *top);
  }
  if (logprobs) out = top.value_or(0);
  return ok_status();
}

const OrderedJson& member(const OrderedJson& object, const char* key) {
  static const OrderedJson kNull;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? kNull : *found;
}

OrderedJson or_else(const OrderedJson& value, OrderedJson otherwise) { return value.is_null() ? otherwise : value; }

// Clients expect all members of a function.
OrderedJson shown_tools(const OrderedJson& tools) {
  OrderedJson out = OrderedJson::array();
  for (const OrderedJson& tool : tools) {
    out.push_back({{"type", "function"},
                   {"name", member(tool, "name")},
                   {"description", member(tool, "description")},
                   {"parameters", member(tool, "parameters")},
                   {"strict", member(tool, "strict")}});
  }
  return out;
}

}  // namespace

Result<ResponsesBody> translate_responses(const Json& body, const std::string& text, MediaParts& media) {
  RETURN_IF_ERROR(refuse_unserved_responses(body));
  RETURN_IF_ERROR(refuse_audio_output(body));
  RETURN_IF_ERROR(refuse_conversation(body));
  ResponsesBody out;
  RETURN_IF_ERROR(read_background(body, out.background));
  RETURN_IF_ERROR(read_logprobs(body, out.top_logprobs));
  OrderedJson chat = OrderedJson::object();
  RETURN_IF_ERROR(translate_input(body, media, chat));
  const auto ordered = parse_ordered_json(text);
  for (const char* key : kSameFields) copy_field(ordered, key, chat);
  copy_server_fields(ordered, chat);
  RETURN_IF_ERROR(translate_response_tools(body, ordered, chat));
  RETURN_IF_ERROR(translate_reasoning(body, chat));
  RETURN_IF_ERROR(check_text(body));
  out.chat = chat.dump();
  return out;
}

std::string request_members(const std::string& text, const wire::SamplingParams& sampling, bool stored) {
  const auto body = parse_ordered_json(text);
  const OrderedJson& given_text = member(body, "text");
  OrderedJson out = {
      {"background", or_else(member(body, "background"), false)},
      {"frequency_penalty", sampling.frequency_penalty},
      {"instructions", member(body, "instructions")},
      {"max_output_tokens", member(body, "max_output_tokens")},
      {"parallel_tool_calls", or_else(member(body, "parallel_tool_calls"), true)},
      {"presence_penalty", sampling.presence_penalty},
      {"previous_response_id", member(body, "previous_response_id")},
      {"reasoning", {{"effort", member(member(body, "reasoning"), "effort")}, {"summary", nullptr}}},
      {"service_tier", "default"},
      {"store", stored},
      {"temperature", sampling.temperature},
      {"text", {{"format", or_else(member(given_text, "format"), {{"type", "text"}})}, {"verbosity", "medium"}}},
      {"tool_choice", or_else(member(body, "tool_choice"), "auto")},
      {"tools", shown_tools(member(body, "tools"))},
      {"top_logprobs", or_else(member(body, "top_logprobs"), 0)},
      {"top_p", sampling.top_p},
      {"truncation", "disabled"}};
  // Of OpenAI's service, and without effect: repeated where they are what they are there.
  const OrderedJson& metadata = member(body, "metadata");
  out["metadata"] = metadata.is_object() ? metadata : OrderedJson::object();
  for (const char* key : {"safety_identifier", "prompt_cache_key"}) {
    out[key] = member(body, key).is_string() ? member(body, key) : OrderedJson();
  }
  if (member(body, "user").is_string()) out["user"] = member(body, "user");
  const OrderedJson& calls = member(body, "max_tool_calls");
  out["max_tool_calls"] = calls.is_number_integer() ? calls : OrderedJson();
  const std::string object = out.dump();
  return object.substr(1, object.size() - 2);
}

}  // namespace millrace::api
