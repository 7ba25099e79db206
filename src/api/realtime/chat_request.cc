#include "api/realtime/chat_request.h"

#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/choices.h"
#include "api/fields.h"
#include "api/speech_fields.h"
#include "api/tool_fields.h"

namespace millrace::api {
namespace {

Result<nlohmann::ordered_json> chat_of(nlohmann::ordered_json messages, const SessionConfig& config) {
  nlohmann::ordered_json out = {{"messages", std::move(messages)}};
  RETURN_IF_ERROR(add_tools(config, out));
  for (const auto& [key, value] : config.sampling.items()) {
    if (config.audio || !key.starts_with("talker_")) out[key] = value;
  }
  if (config.max_tokens) out["max_completion_tokens"] = *config.max_tokens;
  if (config.audio) {
    out["modalities"] = {"text", "audio"};
    out["audio"] = {{"voice", config.voice}, {"format", "pcm16"}};
  }
  return out;
}

void count_rows(const PromptMediaList& media, RealtimeRequest& out) {
  if (!media) return;
  for (const PromptItem& item : *media) {
    (item.media.kind == wire::MediaKind::kAudio ? out.audio_rows : out.picture_rows) += item.media.rows;
  }
}

}  // namespace

Result<RealtimeRequest> make_realtime_request(const Conversation& conversation, const SessionConfig& config,
                                              const ModelFacts& model) {
  MediaParts media(model.media, MediaDialect::kResponses);  // whose parts in the messages stand for what it has taken
  ASSIGN_OR_RETURN(nlohmann::ordered_json messages, conversation.messages(config.instructions, media));
  ASSIGN_OR_RETURN(const nlohmann::ordered_json chat, chat_of(std::move(messages), config));
  const std::string text = chat.dump();
  ASSIGN_OR_RETURN(const Json body, parse_json(text));
  ASSIGN_OR_RETURN(CommonFields fields, read_common(body, text, model, kOpenAiDialect));
  wire::SamplingParams& params = fields.sampling.params;
  RETURN_IF_ERROR(read_output_fields(body, text, model, params).status());
  ASSIGN_OR_RETURN(const std::optional<ChatSpeech> speech, read_chat_speech(body, model, true));
  if (speech) RETURN_IF_ERROR(check_chat_speech(body, fields));
  ASSIGN_OR_RETURN(ChatPrompt prompt, read_chat_prompt(body, text, media, model.tool_history));
  // Who waits for an answer that is spoken at once waits for no reasoning, of which there are no events.
  if (model.reasoning_dialect != wire::ReasoningDialect::kNone) close_reasoning(body, prompt);
  if (speech) params.parsing.reset();
  RealtimeRequest out;
  count_rows(prompt.media, out);
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(prompt));
  out.requests = make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, 1);
  if (speech) speak(speech->request, out.requests.front());
  return out;
}

}  // namespace millrace::api
