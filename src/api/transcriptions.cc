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
#include "base/utf8.h"

namespace millrace::api {
namespace {

constexpr std::size_t kMaxFormFieldBytes = 16u << 10;  // of each field but the file
constexpr std::size_t kShownFieldBytes = 64;

enum class Task : uint8_t { kTranscribe, kTranslate };

struct Form {
  std::string file;
  bool has_file = false;
  std::string language, prompt, format = "json";
  Json fields = Json::object();  // those that chat has too, by its names
};

// Those of chat's fields whose values are texts: all others of a form are read as they would stand in a body.
constexpr std::string_view kTextFields[] = {"model", "cache_salt",   "extra_key",      "request_id",
                                            "rid",   "user",         "stop",           "stop_regex",
                                            "regex", "guided_regex", "guided_grammar", "ebnf"};

Json value_of(const std::string& name, const std::string& text) {
  const auto value = parse_json(text);
  if (!value.ok() || value->is_string()) return text;
  const bool is_text = std::ranges::find(kTextFields, name) != std::end(kTextFields);
  return is_text && value->is_primitive() ? Json(text) : *value;
}

// A field that chat has too, into form.fields. "NAME[]" is one of the elements of NAME.
Status add_field(std::string name, const std::string& text, Form& form) {
  const bool is_element = name.ends_with("[]");
  if (is_element) name.resize(name.size() - 2);
  Json& field = form.fields[name];
  if (is_element && (field.is_null() || field.is_array())) {
    field.push_back(value_of(name, text));
    return ok_status();
  }
  if (!field.is_null()) return invalid_argument("{} is there twice; wanted one", name.substr(0, kShownFieldBytes));
  field = value_of(name, text);
  return ok_status();
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
    return invalid_argument("{} has {} bytes; wanted at most {}", name.substr(0, kShownFieldBytes), part.content.size(),
                            kMaxFormFieldBytes);
  }
  if (!is_utf8(name) || !is_utf8(part.content)) return invalid_argument("a field of the form is no UTF-8; wanted text");
  const std::string text(part.content);
  if (name == "prompt") return form.prompt = text, ok_status();
  if (name == "response_format") return form.format = text, ok_status();
  if (name == "language") {
    if (task == Task::kTranslate) return invalid_argument("language is set; wanted none: translations are English");
    return form.language = text, ok_status();
  }
  const bool times = name.starts_with("timestamp_granularities") || name.starts_with("include") ||
                     name == "chunking_strategy" || name.starts_with("known_speaker");
  if (!times) return add_field(name, text, form);
  if (text == "auto") return ok_status();
  return error(StatusCode::kUnsupported, "{} is '{}'; wanted none: the model answers with text alone",
               name.substr(0, kShownFieldBytes), text.substr(0, kShownFieldBytes));
}

Result<Form> read_upload(const http::Request& request, Task task) {
  const std::string* type = request.headers.find("content-type");
  ASSIGN_OR_RETURN(const std::vector<FormPart> parts, read_form(type ? *type : "", request.body));
  Form form;
  for (const FormPart& part : parts) RETURN_IF_ERROR(read_part(part, task, form));
  if (!form.has_file) return invalid_argument("file is missing; wanted an audio file");
  if (form.format != "json" && form.format != "text") {
    return error(StatusCode::kUnsupported, "response_format is '{}'; wanted json or text: the model knows no times",
                 form.format.substr(0, kShownFieldBytes));
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
  RETURN_IF_ERROR(refuse_unserved_upload(form.fields));
  ASSIGN_OR_RETURN(CommonFields fields, read_common(form.fields, form.fields.dump(), model, kOpenAiDialect));
  RETURN_IF_ERROR(read_rank(request, fields.request));
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
