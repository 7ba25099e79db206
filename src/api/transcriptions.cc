// POST /v1/audio/transcriptions and /v1/audio/translations: OpenAI's upload form, answered by a model that takes audio.
// The audio and an instruction become a conversation of one message; the answer is the text.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/chat_prompt.h"
#include "api/choices.h"
#include "api/fields.h"
#include "api/media_parts.h"
#include "api/multipart.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/transcription_format.h"
#include "api/transcription_prompt.h"
#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

constexpr std::size_t kMaxFormFieldBytes = 16u << 10;  // of each field but the file
constexpr std::size_t kShownBytes = 64;

enum class Task : uint8_t { kTranscribe, kTranslate };

struct Form {
  std::string file;
  bool has_file = false;
  std::string language, prompt, format = "json";
  Json fields = Json::object();  // those that chat has too, by its names
};

// A number or a truth value of a form is text; JSON reads it as it would stand in a body.
Status read_value(const FormPart& part, Json& fields) {
  const Json value = Json::parse(part.content, nullptr, false);
  if (value.is_number() || value.is_boolean()) {
    fields[part.name] = value;
    return ok_status();
  }
  return invalid_argument("{} is '{}'; wanted a number, or true or false", part.name,
                          part.content.substr(0, kShownBytes));
}

Status read_part(const FormPart& part, Task task, Form& form) {
  const std::string& name = part.name;
  if (name == "file") {
    if (form.has_file) return invalid_argument("file is there twice; wanted one");
    form.has_file = true;
    form.file = std::string(part.content);
    return ok_status();
  }
  if (part.content.size() > kMaxFormFieldBytes) {
    return invalid_argument("{} has {} bytes; wanted at most {}", name.substr(0, kShownBytes), part.content.size(),
                            kMaxFormFieldBytes);
  }
  const std::string text(part.content);
  if (name == "model") form.fields["model"] = text;
  if (name == "prompt") form.prompt = text;
  if (name == "language") {
    if (task == Task::kTranslate) return invalid_argument("language is set; wanted none: translations are English");
    form.language = text;
  }
  if (name == "response_format") form.format = text;
  if (name == "temperature" || name == "stream" || name == "max_tokens" || name == "max_completion_tokens" ||
      name == "seed" || name == "top_p" || name == "top_k" || name == "min_p" || name == "repetition_penalty" ||
      name == "frequency_penalty" || name == "presence_penalty" || name == "timeout_s") {
    return read_value(part, form.fields);
  }
  const bool times = name.starts_with("timestamp_granularities") || name.starts_with("include") ||
                     name == "chunking_strategy" || name.starts_with("known_speaker");
  if (times && text != "auto") {
    return error(StatusCode::kUnsupported, "{} is '{}'; wanted none: the model answers with text alone",
                 name.substr(0, kShownBytes), text.substr(0, kShownBytes));
  }
  const auto value = parse_json(text);
  Json rest = Json::object();
  rest[name] = value.ok() ? *value : Json(text);
  return refuse_unserved(rest);
}

Result<Form> read_upload(const http::Request& request, Task task) {
  const std::string* type = request.headers.find("content-type");
  ASSIGN_OR_RETURN(const std::vector<FormPart> parts, read_form(type ? *type : "", request.body));
  Form form;
  for (const FormPart& part : parts) RETURN_IF_ERROR(read_part(part, task, form));
  if (!form.has_file) return invalid_argument("file is missing; wanted an audio file");
  if (form.format != "json" && form.format != "text") {
    return error(StatusCode::kUnsupported, "response_format is '{}'; wanted json or text: the model knows no times",
                 form.format.substr(0, kShownBytes));
  }
  if (!form.fields.contains("temperature")) form.fields["temperature"] = 0;
  return form;
}

Result<ChatPrompt> make_prompt(Form& form, Task task, const ModelFacts& model) {
  std::string text = "Translate the audio into English text.";
  if (task == Task::kTranscribe) {
    ASSIGN_OR_RETURN(text, transcription_instruction(form.language, "language"));
  }
  if (!form.prompt.empty()) text += transcription_context(form.prompt);
  MediaParts media(model.media);
  RETURN_IF_ERROR(media.add_audio(std::move(form.file), "file"));
  ASSIGN_OR_RETURN(PromptMediaList list, std::move(media).list());
  return transcription_prompt(std::move(list), text, model);
}

Status answer(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder, Task task) {
  const ModelFacts& model = context.engine.model();
  if (!model.media.audio) {
    return error(StatusCode::kUnsupported, "the model '{}' takes no audio; wanted one that does", model.name);
  }
  ASSIGN_OR_RETURN(Form form, read_upload(request, task));
  ASSIGN_OR_RETURN(const std::string name, context.names.read(form.fields));
  ASSIGN_OR_RETURN(const CommonFields fields, read_common(form.fields, form.fields.dump(), model, kOpenAiDialect));
  ASSIGN_OR_RETURN(ChatPrompt prompt, make_prompt(form, task, model));
  auto format = std::make_unique<TranscriptionFormat>(
      TranscriptionFormat::Options{.audio_rows = prompt.media->front().media.rows,
                                   .context_length = model.context_length,
                                   .may_be_cut = fields.sampling.max_tokens.has_value(),
                                   .plain = form.format == "text" && !fields.stream});
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), ReplyOptions{.stream = fields.stream});
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(prompt));
  reply->start(make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, 1),
               {{make_id("transcription-"), 0, 1}});
  return ok_status();
}

Status transcribe(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  return answer(context, request, responder, Task::kTranscribe);
}

Status translate(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  return answer(context, request, responder, Task::kTranslate);
}

}  // namespace

void add_audio_routes(ApiContext& context) {
  add_upload_route(context, "/v1/audio/transcriptions", transcribe);
  add_upload_route(context, "/v1/audio/translations", translate);
}

}  // namespace millrace::api
