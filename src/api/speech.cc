// POST /v1/audio/speech: OpenAI's text to speech. The input stands in the prompt as the assistant's turn, which the
// model speaks as it is: no text is generated.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/choices.h"
#include "api/content_blocks.h"
#include "api/fields.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/speech_fields.h"
#include "api/speech_format.h"
#include "api/unserved_fields.h"
#include "base/utf8.h"

namespace millrace::api {
namespace {

constexpr int64_t kMaxInputCharacters = 4096;  // of input and of instructions: as OpenAI has them

struct SpeechJob {
  wire::SpeechRequest speech;
  AudioFormat format = AudioFormat::kMp3;
  bool events = false;
  std::string input, instructions;
  SamplingFields sampling;
  RequestFields request;
  std::string rid;
};

// Of other servers' text to speech, and the sampling of a text, which there is none of.
Status refuse_unserved_speech(const Json& body) {
  for (const char* key : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens",
                          "max_new_tokens", "language", "task_type", "ref_audio", "ref_text", "modalities", "audio"}) {
    RETURN_IF_ERROR(refuse_unless(body, key, Json()));
  }
  return refuse_unless(body, "speed", 1);
}

Status read_text(const Json& body, const char* key, int64_t least, std::string& out) {
  RETURN_IF_ERROR(json_read(body, key, out));
  const int64_t count = std::count_if(out.begin(), out.end(), [](char c) { return !utf8_is_continuation(c); });
  if (count < least || count > kMaxInputCharacters) {
    return invalid_argument("{} has {} characters; wanted {} to {}", key, count, least, kMaxInputCharacters);
  }
  if (least > 0 && out.find_first_not_of(" \t\r\n") == std::string::npos) {
    return invalid_argument("{} has {} characters, all of them white space; wanted text", key, count);
  }
  return ok_status();
}

Status read_formats(const Json& body, SpeechJob& job) {
  std::string name(audio_format_name(job.format)), stream = "audio";
  RETURN_IF_ERROR(json_read(body, "response_format", name));
  const std::optional<AudioFormat> format = find_audio_format(name);
  if (!format) {
    return invalid_argument("response_format is '{}'; wanted wav, flac, opus, mp3 or pcm", name.substr(0, kShownBytes));
  }
  RETURN_IF_ERROR(json_read(body, "stream_format", stream));
  if (stream != "audio" && stream != "sse") {
    return invalid_argument("stream_format is '{}'; wanted audio or sse", stream.substr(0, kShownBytes));
  }
  job.format = *format;
  job.events = stream == "sse";
  return ok_status();
}

Result<SpeechJob> read_job(const Json& body, const http::Request& request, const ModelFacts& model) {
  SpeechJob job;
  RETURN_IF_ERROR(refuse_unserved_speech(body));
  RETURN_IF_ERROR(read_text(body, "input", 1, job.input));
  RETURN_IF_ERROR(read_text(body, "instructions", 0, job.instructions));
  ASSIGN_OR_RETURN(job.speech.voice, read_voice(json_find(body, "voice"), "voice", *model.speech));
  RETURN_IF_ERROR(read_formats(body, job));
  RETURN_IF_ERROR(read_talker_sampling(body, job.speech));
  job.speech.verbatim = true;
  Json seed = Json::object();
  if (const Json* given = json_find(body, "seed")) seed["seed"] = *given;
  ASSIGN_OR_RETURN(job.sampling, read_sampling(seed, model, kOpenAiDialect));
  job.sampling.max_tokens = 1;  // nothing is generated; a request needs a number
  ASSIGN_OR_RETURN(job.request, read_request_fields(body));
  if (job.request.remote_kv) {
    return error(StatusCode::kUnsupported, "kv_transfer_params is set; wanted none where text is spoken");
  }
  RETURN_IF_ERROR(read_rank(request, job.request));
  for (const char* key : {"request_id", "rid"}) RETURN_IF_ERROR(read_name(body, key, job.rid));
  return job;
}

ChatPrompt make_prompt(const SpeechJob& job, const ModelFacts& model) {
  ChatPrompt prompt;
  prompt.messages = ChatValue(Json::array(
      {{{"role", "user"}, {"content", job.instructions}}, {{"role", "assistant"}, {"content", job.input}}}));
  prompt.add_generation_prompt = false;
  prompt.continue_final_message = true;
  prompt.media_tokens = MediaTokens(model.media);
  prompt.source_bytes = job.instructions.size() + job.input.size();
  if (model.reasoning_dialect != wire::ReasoningDialect::kNone) {
    prompt.template_kwargs = ChatValue(Json{{"enable_thinking", false}});
  }
  return prompt;
}

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  ASSIGN_OR_RETURN(const std::string name, context.names.read(body));
  if (!model.speech) {
    return error(StatusCode::kUnsupported, "model is '{}', which answers with text alone; wanted one that speaks",
                 name);
  }
  ASSIGN_OR_RETURN(SpeechJob job, read_job(body, request, model));
  const bool as_made = SpeechFormat::sent_while_made(job.format);
  const ReplyOptions options{.stream = job.events || as_made, .retained = job.events && !as_made};
  auto format = std::make_unique<SpeechFormat>(*model.speech, job.format, job.events);
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), options);
  std::vector<Prompt> prompts;
  prompts.emplace_back(make_prompt(job, model));
  auto requests = make_requests(std::move(prompts), {&job.sampling, 1}, job.request, 1);
  speak(job.speech, requests.front());
  reply->start(std::move(requests), {{job.rid.empty() ? make_id("speech-") : job.rid, 0, 1}});
  return ok_status();
}

}  // namespace

void add_speech_routes(ApiContext& context) { add_post_route(context, "/v1/audio/speech", handle); }

}  // namespace millrace::api
