#include "api/speech_fields.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "api/content_blocks.h"
#include "api/sampling_fields.h"

namespace millrace::api {
namespace {

constexpr const char* kTalkerFields[] = {"talker_temperature",        "talker_top_p",          "talker_top_k",
                                         "talker_repetition_penalty", "talker_max_new_tokens", "talker_do_sample"};
constexpr std::string_view kFormats = "wav, flac, opus, mp3 or pcm16";

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kShownBytes);
}

struct Modalities {
  bool text = true;
  bool audio = false;
};

Result<Modalities> read_modalities(const Json& body) {
  const Json* given = json_find(body, "modalities");
  if (!given) return Modalities{};
  const auto count = [given](const char* name) { return std::count(given->begin(), given->end(), Json(name)); };
  if (given->is_array()) {
    const auto text = count("text"), audio = count("audio");
    const bool known = static_cast<std::size_t>(text + audio) == given->size();
    if (known && text <= 1 && audio <= 1 && text + audio > 0) return Modalities{text == 1, audio == 1};
  }
  return invalid_argument(R"(modalities is {}; wanted ["text"], ["text", "audio"] or ["audio"])", shown(*given));
}

// Fields that count only where the answer is spoken.
Status refuse_without_audio(const Json& body) {
  if (json_find(body, "audio")) {
    return invalid_argument(R"(audio is set without modalities; wanted modalities: ["text", "audio"] beside it)");
  }
  for (const char* key : kTalkerFields) {
    if (!json_find(body, key)) continue;
    return invalid_argument(R"({} is set without modalities; wanted modalities: ["text", "audio"] beside it)", key);
  }
  return ok_status();
}

Result<AudioFormat> read_chat_format(const Json& audio, bool stream) {
  const AudioFormat otherwise = stream ? AudioFormat::kPcm16 : AudioFormat::kWav;
  if (!json_find(audio, "format")) return otherwise;
  std::string name;
  RETURN_IF_ERROR(json_read(audio, "format", name).with_prefix("audio"));
  const std::optional<AudioFormat> format = find_audio_format(name);
  if (!format) return invalid_argument("audio.format is '{}'; wanted {}", name.substr(0, kShownBytes), kFormats);
  if (stream && *format != AudioFormat::kPcm16) {
    return invalid_argument("audio.format is '{}' in a stream; wanted pcm16, or no stream", name);
  }
  return *format;
}

Status read_number(const Json& body, const char* key, double low, double high, std::string_view wanted, double& out) {
  double value = out;
  RETURN_IF_ERROR(json_read(body, key, value));
  if (!(value >= low && value <= high)) return invalid_argument("{} is {}; wanted {}", key, value, wanted);
  out = value;
  return ok_status();
}

}  // namespace

Result<std::string> read_voice(const Json* voice, std::string_view where, const SpeechFacts& facts) {
  CHECK(!facts.voices.empty());
  if (voice == nullptr) return facts.voices.front();
  const Json* name = voice->is_object() ? json_find(*voice, "id") : voice;
  if (name == nullptr || !name->is_string()) {
    return invalid_argument("{} is {}; wanted a string, or an object with one as id", where, shown(*voice));
  }
  const std::string& given = name->get_ref<const std::string&>();
  std::string known;
  for (const std::string& each : facts.voices) {
    if (http::equals_ignore_case(given, each)) return each;
    known += (known.empty() ? "" : ", ") + each;
  }
  return invalid_argument("{} is '{}'; wanted one of {}", where, given.substr(0, kShownBytes), known);
}

Status read_talker_sampling(const Json& body, wire::SpeechRequest& out) {
  constexpr double kLeast = std::numeric_limits<double>::min();  // positive numbers alone
  RETURN_IF_ERROR(read_number(body, "talker_temperature", 0, 2, "a number in [0, 2]", out.temperature));
  RETURN_IF_ERROR(read_number(body, "talker_top_p", kLeast, 1, "a number in (0, 1]", out.top_p));
  RETURN_IF_ERROR(
      read_number(body, "talker_repetition_penalty", kLeast, 2, "a number in (0, 2]", out.repetition_penalty));
  std::optional<int64_t> top_k, frames;
  RETURN_IF_ERROR(read_integer(body, "talker_top_k", -1, kMaxTopK, top_k));
  if (top_k) out.top_k = *top_k == 0 ? -1 : static_cast<int32_t>(*top_k);
  RETURN_IF_ERROR(read_integer(body, "talker_max_new_tokens", 1, INT32_MAX, frames));
  if (frames) out.max_frames = static_cast<int32_t>(*frames);
  bool sample = true;
  RETURN_IF_ERROR(json_read(body, "talker_do_sample", sample));
  if (!sample || out.temperature < kGreedyBelow) out.temperature = 0;
  return ok_status();
}

Result<std::optional<ChatSpeech>> read_chat_speech(const Json& body, const ModelFacts& model, bool stream) {
  ASSIGN_OR_RETURN(const Modalities modalities, read_modalities(body));
  if (!modalities.audio) {
    RETURN_IF_ERROR(refuse_without_audio(body));
    return std::optional<ChatSpeech>();
  }
  if (!model.speech) {
    return error(StatusCode::kUnsupported,
                 R"(modalities is {}; wanted ["text"]: the model '{}' answers with text alone)",
                 shown(*json_find(body, "modalities")), model.name);
  }
  ChatSpeech out{.text = modalities.text};
  const Json none = Json::object();
  const Json* audio = json_find(body, "audio");
  if (audio && !audio->is_object()) {
    return invalid_argument("audio is of type {}; wanted an object", json_type_name(*audio));
  }
  if (!audio) audio = &none;
  ASSIGN_OR_RETURN(out.request.voice, read_voice(json_find(*audio, "voice"), "audio.voice", *model.speech));
  ASSIGN_OR_RETURN(out.format, read_chat_format(*audio, stream));
  RETURN_IF_ERROR(read_talker_sampling(body, out.request));
  return std::optional<ChatSpeech>(std::move(out));
}

void speak(const wire::SpeechRequest& speech, GenerateRequest& request) {
  request.speech = speech;
  request.speech->seed = request.sampling.seed;
}

Status check_chat_speech(const Json& body, const CommonFields& fields) {
  const auto refused = [](std::string_view what) {
    return error(StatusCode::kUnsupported, "{} where the answer is spoken (modalities)", what);
  };
  if (fields.sampling.n != 1) return refused(fmt::format("n is {}; wanted 1", fields.sampling.n));
  if (fields.request.remote_kv) return refused("kv_transfer_params is set; wanted none");
  const Boxed<wire::OutputParsing>& parsing = fields.sampling.params.parsing;
  if (parsing && parsing->tools != wire::ToolDialect::kNone) {
    return refused("tools is set; wanted none, or tool_choice: \"none\",");
  }
  if (parsing && parsing->reasoning == wire::ReasoningDialect::kThinkOpen) {
    return error(StatusCode::kUnsupported, R"(modalities is {}; wanted ["text"]: this model always reasons first)",
                 shown(*json_find(body, "modalities")));
  }
  const Json* variables = json_find(body, "chat_template_kwargs");
  for (const Json* object : {&body, variables}) {
    const Json* thinking = object && object->is_object() ? json_find(*object, "enable_thinking") : nullptr;
    if (thinking && *thinking == true) return refused("enable_thinking is true; wanted false");
  }
  return ok_status();
}

}  // namespace millrace::api
