#include "api/prompt_values.h"

#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/choices.h"
#include "api/fields.h"
#include "api/tool_fields.h"
#include "api/unserved_fields.h"
#include "api/value_json.h"
#include "stages/generating/token_values.h"

namespace millrace::api {
namespace {

Result<Prompt> chat_prompt(const Value& conversation) {
  std::string text;
  append_value(text, conversation);
  ASSIGN_OR_RETURN(const Json body, parse_json(text));
  const MediaFacts text_only;
  MediaParts media(text_only);
  ASSIGN_OR_RETURN(ChatPrompt prompt, read_chat_prompt(body, text, media));
  return Prompt(std::move(prompt));
}

}  // namespace

Result<Prompt> read_prompt(const Value& payload, bool chat) {
  const Value* text = payload.find("text");
  const Value* messages = payload.find("messages");
  const Value* ids = payload.find(kIdsKey);
  if ((text != nullptr) + (messages != nullptr) + (ids != nullptr) != 1) {
    return invalid_argument("the payload has {} of text, messages and ids; wanted one of them",
                            (text != nullptr) + (messages != nullptr) + (ids != nullptr));
  }
  if (messages != nullptr) return chat_prompt(payload);
  if (ids != nullptr) {
    ASSIGN_OR_RETURN(std::vector<int32_t> list, ids_of(payload));
    return Prompt(TokenPrompt{std::move(list)});
  }
  if (!text->is<std::string>()) return invalid_argument("text is a {}; wanted a string", kind_name(*text));
  if (chat) {
    Value message;
    message.set("role", "user");
    message.set("content", *text);
    Value conversation = without(payload, {"text"});
    conversation.set("messages", ValueList{std::move(message)});
    return chat_prompt(conversation);
  }
  TextPrompt prompt{*text->get<std::string>()};
  if (const Value* special = payload.find("add_special_tokens")) {
    if (!special->is<bool>()) {
      return invalid_argument("add_special_tokens is a {}; wanted a boolean", kind_name(*special));
    }
    prompt.add_special_tokens = *special->get<bool>();
  }
  return Prompt(std::move(prompt));
}

Result<GenerateRequest> read_request(const Value& payload, const ModelFacts& facts) {
  std::string text = "{}";
  if (const Value* sampling = payload.find("sampling")) {
    if (!sampling->is<ValueMap>()) return invalid_argument("sampling is a {}; wanted a map", kind_name(*sampling));
    text.clear();
    append_value(text, *sampling);
  }
  ASSIGN_OR_RETURN(const Json body, parse_json(text));
  // The bounds are those of every endpoint; what is absent ends with the context, as in a conversation.
  auto fields = read_common(body, text, facts, kOpenAiDialect);
  if (!fields.ok()) return fields.status().with_prefix("sampling");
  RETURN_IF_ERROR(refuse_tools(body).with_prefix("sampling"));
  RETURN_IF_ERROR(refuse_audio_output(body).with_prefix("sampling"));
  if (fields->sampling.n != 1) {
    return invalid_argument("sampling: n is {}; wanted 1, for a request of a pipeline has one answer",
                            fields->sampling.n);
  }
  std::vector<GenerateRequest> made = make_requests({TokenPrompt{}}, {&fields->sampling, 1}, fields->request, 1);
  return std::move(made.front());
}

}  // namespace millrace::api
