#include "api/realtime/transcription.h"

#include <algorithm>

#include "api/choices.h"
#include "api/fields.h"
#include "api/realtime/limits.h"
#include "api/realtime/members.h"
#include "api/realtime/server_events.h"
#include "api/transcript_text.h"
#include "api/transcription_prompt.h"

namespace millrace::api {
namespace {

// A row is 80 ms or less: speech has a quarter of that at most. A model that repeats itself ends here.
int64_t max_transcript_tokens(int64_t audio_rows) { return 4 * audio_rows + 64; }

nlohmann::ordered_json transcript_event(const Transcript& transcript, const char* what) {
  nlohmann::ordered_json out = server_event(fmt::format("conversation.item.input_audio_transcription.{}", what));
  out["item_id"] = transcript.item_id;
  out["content_index"] = 0;
  return out;
}

void write_event(const nlohmann::ordered_json& event, EventWriter& out) {
  out.begin() += event_line(event);
  out.end();
}

nlohmann::ordered_json tokens_json(const wire::Usage& usage, int64_t audio_rows) {
  return {{"type", "tokens"},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"input_tokens", usage.prompt_tokens},
          {"input_token_details",
           {{"text_tokens", std::max<int64_t>(0, usage.prompt_tokens - audio_rows)}, {"audio_tokens", audio_rows}}},
          {"output_tokens", usage.completion_tokens}};
}

}  // namespace

Status read_transcription(const Json& object, const char* key, const std::string& where, const ModelFacts& model,
                          const std::string& model_name, std::optional<TranscriptionConfig>& out) {
  if (!object.contains(key)) return ok_status();
  ASSIGN_OR_RETURN(const Json* given, read_object(object, key, where));
  if (!given) return out.reset(), ok_status();
  const std::string name = member_name(where, key);
  if (!model.media.audio) {
    return error(StatusCode::kUnsupported, "{} is {}; wanted null: the model '{}' takes no audio", name,
                 shown_value(*given), model.name);
  }
  RETURN_IF_ERROR(check_members(*given, name, {"model", "language", "prompt"}));
  TranscriptionConfig config{.model = model_name};
  RETURN_IF_ERROR(check_value(*given, "model", name, {model_name}));
  RETURN_IF_ERROR(json_read(*given, "language", config.language).with_prefix(name));
  RETURN_IF_ERROR(json_read(*given, "prompt", config.prompt).with_prefix(name));
  RETURN_IF_ERROR(transcription_instruction(config.language, name + ".language").status());
  if (config.prompt.size() > kMaxInstructionsBytes) {
    return invalid_argument("{}.prompt has {} bytes; wanted at most {}", name, config.prompt.size(),
                            kMaxInstructionsBytes);
  }
  out = std::move(config);
  return ok_status();
}

nlohmann::ordered_json transcription_json(const std::optional<TranscriptionConfig>& config) {
  if (!config) return nullptr;
  return {{"model", config->model}, {"language", or_null(config->language)}, {"prompt", config->prompt}};
}

Result<std::vector<GenerateRequest>> make_transcription(const PromptItem& audio, const TranscriptionConfig& config,
                                                        const ModelFacts& model) {
  const Json body = {{"temperature", 0}, {"max_tokens", max_transcript_tokens(audio.media.rows)}};
  ASSIGN_OR_RETURN(const CommonFields fields, read_common(body, body.dump(), model, kOpenAiDialect));
  ASSIGN_OR_RETURN(std::string instruction, transcription_instruction(config.language, "language"));
  if (!config.prompt.empty()) instruction += transcription_context(config.prompt);
  MediaParts media(model.media, MediaDialect::kResponses);
  RETURN_IF_ERROR(media.add_taken(audio, "item"));
  ASSIGN_OR_RETURN(PromptMediaList list, std::move(media).list());
  std::vector<Prompt> prompts;
  prompts.emplace_back(transcription_prompt(std::move(list), instruction, model));
  return make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, 1);
}

std::string failed_line(const Transcript& transcript, const ApiError& error) {
  nlohmann::ordered_json failed = transcript_event(transcript, "failed");
  failed["error"] = {{"type", error_type(error.http_status)},
                     {"code", or_null(error.code)},
                     {"message", error.message},
                     {"param", or_null(error.param)}};
  return event_line(failed);
}

void TranscriptFormat::events(const ChoiceState& choice, EventWriter& out) {
  const std::string_view fresh = append_transcript(transcript_->text, choice.text);
  if (!fresh.empty()) {
    nlohmann::ordered_json delta = transcript_event(*transcript_, "delta");
    delta["delta"] = fresh;
    write_event(delta, out);
  }
  if (!choice.finish) return;
  const Status complete =
      check_transcript_end(choice, transcript_->context_length, max_transcript_tokens(transcript_->audio_rows));
  if (!complete.ok()) {  // here and not in finish(), which would leave out the last delta
    std::string line = error_event(from_status(complete));
    line.pop_back();
    out.begin() += line;
    return out.end();
  }
  std::string& text = transcript_->text;
  text = std::string(trimmed_transcript(text));
  transcript_->done = true;
  nlohmann::ordered_json completed = transcript_event(*transcript_, "completed");
  completed["transcript"] = text;
  completed["usage"] = tokens_json(choice.usage, transcript_->audio_rows);
  write_event(completed, out);
}

std::string TranscriptFormat::error_event(const ApiError& error) const {
  transcript_->text.clear();
  transcript_->done = true;
  return failed_line(*transcript_, error) + '\n';
}

http::Response TranscriptFormat::error_response(const ApiError& error) const {
  return {.status = error.http_status, .body = error_event(error)};
}

}  // namespace millrace::api
