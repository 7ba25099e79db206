#include "api/translated_chat.h"

#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"

namespace millrace::api {
namespace {

constexpr const char* kServerFields[] = {"min_p",
                                         "seed",
                                         "frequency_penalty",
                                         "logit_bias",
                                         "presence_penalty",
                                         "min_tokens",
                                         "stop_regex",
                                         "stop_token_ids",
                                         "repetition_penalty",
                                         "ignore_eos",
                                         "skip_special_tokens",
                                         "include_stop_str_in_output",
                                         "no_stop_trim",
                                         "rid",
                                         "request_id",
                                         "cache_salt",
                                         "extra_key",
                                         "priority",
                                         "routed_dp_rank",
                                         "data_parallel_rank",
                                         "timeout_s",
                                         "queue_timeout_s",
                                         "chat_template_kwargs"};

}  // namespace

Result<TranslatedChat> read_translated_chat(const std::string& chat, const Json& body, const http::Request& request,
                                            const ModelFacts& model, const ChatDialect& dialect, MediaParts& media) {
  ASSIGN_OR_RETURN(const Json chat_body, parse_json(chat));
  TranslatedChat out;
  ASSIGN_OR_RETURN(out.fields, read_common(chat_body, chat, model, dialect.sampling));
  RETURN_IF_ERROR(read_rank(request, out.fields.request));
  wire::SamplingParams& sampling = out.fields.sampling.params;
  RETURN_IF_ERROR(dialect.read_grammar(body, request.body, sampling));
  ASSIGN_OR_RETURN(out.view, read_output_fields(chat_body, chat, model, sampling));
  ASSIGN_OR_RETURN(out.prompt, read_chat_prompt(chat_body, chat, media, model.tool_history));
  if (forces_call(chat_body) && model.reasoning_dialect != wire::ReasoningDialect::kNone) {
    close_reasoning(chat_body, out.prompt);
  }
  return out;
}

void copy_field(const nlohmann::ordered_json& body, const char* key, nlohmann::ordered_json& chat) {
  if (const auto value = body.find(key); value != body.end()) chat[key] = *value;
}

void copy_server_fields(const nlohmann::ordered_json& body, nlohmann::ordered_json& chat) {
  for (const char* key : kServerFields) copy_field(body, key, chat);
}

}  // namespace millrace::api
