// Bodies of requests, of each family that is translated into a chat, and of a chat itself: refused, or read; and what a
// translation accepts is a body itself. The first byte chooses the family and whether the model sees, hears and
// reasons.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "api/chat_prompt.h"
#include "api/grammar_fields.h"
#include "api/messages_request.h"
#include "api/ollama_request.h"
#include "api/responses_request.h"
#include "api/translated_chat.h"

namespace {

using namespace millrace;
using namespace millrace::api;

ModelFacts model_of(uint8_t options) {
  ModelFacts model;
  model.name = "demo";
  model.context_length = 4000;
  model.vocab_size = 3000;
  model.has_chat_template = true;
  if (options & 8) model.media.pictures.emplace();
  if (options & 16) model.reasoning_dialect = wire::ReasoningDialect::kThink;
  if (options & 32) model.tool_dialect = wire::ToolDialect::kQwen;
  model.has_tool_token = (options & 64) != 0;
  model.tool_history.short_ids = model.tool_history.arguments_as_text = (options & 128) != 0;
  return model;
}

void read_chat(const std::string& chat, const Json& body, const http::Request& request, const ModelFacts& model,
               const ChatDialect& dialect, MediaParts& media) {
  CHECK(parse_json(chat).ok());
  (void)read_translated_chat(chat, body, request, model, dialect, media);
}

void read(uint8_t family, const http::Request& request, const ModelFacts& model) {
  const Result<Json> body = parse_body(request.body);
  if (!body.ok()) return;
  if (family == 0) {
    MediaParts media(model.media, MediaDialect::kMessages);
    const auto chat = translate_messages(*body, request.body, model, media);
    if (chat.ok()) read_chat(chat->text, *body, request, model, {kMessagesDialect, read_messages_grammar}, media);
  } else if (family == 1) {
    MediaParts media(model.media, MediaDialect::kResponses);
    const auto chat = translate_responses(*body, request.body, media);
    if (chat.ok()) read_chat(chat->chat, *body, request, model, {kResponsesDialect, read_responses_grammar}, media);
  } else if (family == 2) {
    MediaParts media(model.media);
    const auto chat = translate_ollama_chat(*body, request.body, model);
    if (chat.ok() && !chat->empty)
      read_chat(chat->chat, *body, request, model, {kOpenAiDialect, read_ollama_grammar}, media);
  } else {
    MediaParts media(model.media, MediaDialect::kChat);
    read_chat(request.body, *body, request, model, {kOpenAiDialect, read_grammar}, media);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  http::Request request;
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  read(data[0] % 4, request, model_of(data[0]));
  return 0;
}
