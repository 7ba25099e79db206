// From a chat body, into which an endpoint of another dialect has translated its own, to what the engine gets: the
// readers of /v1/chat/completions read it, so there is one way from a conversation to the engine.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "api/fields.h"
#include "api/media_parts.h"
#include "api/tool_fields.h"
#include "base/json.h"
#include "base/status.h"
#include "http/message.h"
#include "stages/engine.h"

namespace millrace::api {

struct TranslatedChat {
  CommonFields fields;
  OutputView view;
  ChatPrompt prompt;
};

// What differs between the dialects: the names of sampling fields that were not renamed, and where the client's body
// has a grammar (api/grammar_fields.h).
struct ChatDialect {
  const SamplingDialect& sampling;
  Status (*read_grammar)(const Json& body, const std::string& text, wire::SamplingParams& out);
};

// `chat`: the translated body. `body`, `request`: as they came. kInvalidArgument or kUnsupported with the field's name
// first. `media`: what the translation took, or takes out of the chat.
Result<TranslatedChat> read_translated_chat(const std::string& chat, const Json& body, const http::Request& request,
                                            const ModelFacts& model, const ChatDialect& dialect, MediaParts& media);

// Copies the fields that are this server's and not the dialect's, which every endpoint has under the same names.
void copy_server_fields(const nlohmann::ordered_json& body, nlohmann::ordered_json& chat);
void copy_field(const nlohmann::ordered_json& body, const char* key, nlohmann::ordered_json& chat);

}  // namespace millrace::api
