#include "api/realtime/session_config.h"

#include <algorithm>

#include "api/realtime/limits.h"
#include "api/realtime/members.h"
#include "api/realtime/turn_detection_fields.h"
#include "api/responses_tools.h"
#include "api/sampling_fields.h"
#include "api/speech_fields.h"
#include "api/tool_fields.h"

namespace millrace::api {
namespace {

// Fields of a chat that a session and a response may have too: this server's, beside those of the dialect.
const std::vector<std::string_view> kSampling = {"temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "min_p",
                                                 "seed",
                                                 "stop",
                                                 "frequency_penalty",
                                                 "presence_penalty",
                                                 "repetition_penalty",
                                                 "ignore_eos",
                                                 "min_tokens",
                                                 "timeout_s",
                                                 "cache_salt",
                                                 "chat_template_kwargs",
                                                 "talker_temperature",
                                                 "talker_top_p",
                                                 "talker_top_k",
                                                 "talker_repetition_penalty",
                                                 "talker_max_new_tokens",
                                                 "talker_do_sample"};

std::vector<std::string_view> joined(std::initializer_list<std::string_view> more) {
  std::vector<std::string_view> out(more);
  out.insert(out.end(), {"tools", "tool_choice"});
  out.insert(out.end(), kSampling.begin(), kSampling.end());
  return out;
}

Status read_modalities(const Json& object, const std::string& where, const RealtimeDialect& dialect,
                       const ModelFacts& model, SessionConfig& config) {
  const Json* given = json_find(object, dialect.modalities);
  if (!given) return ok_status();
  const Json text = Json::array({"text"}), audio = Json::array({"audio"});
  const Json both = Json::array({"text", "audio"}), both_also = Json::array({"audio", "text"});
  const std::string name = member_name(where, dialect.modalities);
  const bool speaks = dialect.beta ? *given == both || *given == both_also : *given == audio;
  if (!speaks && *given != text) {
    return invalid_argument(R"({} is {}; wanted ["text"] or {})", name, shown_value(*given),
                            (dialect.beta ? both : audio).dump());
  }
  if (speaks && !model.speech) {
    return error(StatusCode::kUnsupported, R"({} is {}; wanted ["text"]: the model '{}' answers with text alone)", name,
                 shown_value(*given), model.name);
  }
  if (speaks && model.speech->sample_rate != kRealtimeRate) {
    return error(StatusCode::kUnsupported, R"({} is {}; wanted ["text"]: the model '{}' speaks at {} Hz, not at {})",
                 name, shown_value(*given), model.name, model.speech->sample_rate, kRealtimeRate);
  }
  config.audio = speaks;
  return ok_status();
}

Status read_output_voice(const Json& object, const std::string& where, const ModelFacts& model, SessionConfig& config) {
  const Json* voice = json_find(object, "voice");
  if (!voice) return ok_status();
  const std::string name = member_name(where, "voice");
  if (!model.speech) {
    return error(StatusCode::kUnsupported, "{} is {}; wanted none: the model '{}' answers with text alone", name,
                 shown_value(*voice), model.name);
  }
  ASSIGN_OR_RETURN(config.voice, read_voice(voice, name, *model.speech));
  return ok_status();
}

Status read_max_tokens(const Json& object, const std::string& where, const RealtimeDialect& dialect,
                       SessionConfig& config) {
  const Json* given = json_find(object, dialect.max_tokens);
  if (!given) return ok_status();
  if (*given == "inf") {
    config.max_tokens.reset();
    return ok_status();
  }
  if (!given->is_number_integer() || *given < 1 || *given > INT32_MAX) {
    return invalid_argument(R"({} is {}; wanted an integer in [1, {}] or "inf")",
                            member_name(where, dialect.max_tokens), shown_value(*given), INT32_MAX);
  }
  config.max_tokens = given->get<int64_t>();
  return ok_status();
}

// Tools, and the choice among them: what a chat would refuse is refused here, not by the first response.
Status read_tools(const nlohmann::ordered_json& object, const std::string& where, const ModelFacts& model,
                  SessionConfig& config) {
  for (const char* key : {"tools", "tool_choice"}) {
    const auto value = object.find(key);
    if (value == object.end() || value->is_null()) continue;
    (key == std::string_view("tools") ? config.tools : config.tool_choice) = *value;
  }
  nlohmann::ordered_json chat = nlohmann::ordered_json::object();
  Status status = add_tools(config, chat);
  if (status.ok()) {
    wire::SamplingParams probe;
    const std::string text = chat.dump();
    status = read_output_fields(Json::parse(text), text, model, probe).status();
  }
  return status.ok() ? status : Status(status.code(), member_name(where, status.message()));
}

// A call is no speech.
Status check_spoken_tools(const SessionConfig& config, const std::string& where, const RealtimeDialect& dialect) {
  if (!config.audio || !config.calls()) return ok_status();
  return error(StatusCode::kUnsupported,
               R"({}.tools is set, and answers are spoken; wanted {}: ["text"] with it, or tool_choice: "none")", where,
               dialect.modalities);
}

// What a session and a response have in common.
Status read_shared(const Json& object, const nlohmann::ordered_json& ordered, const std::string& where,
                   const RealtimeDialect& dialect, const ModelFacts& model, SessionConfig& config) {
  RETURN_IF_ERROR(read_tools(ordered, where, model, config));
  RETURN_IF_ERROR(read_modalities(object, where, dialect, model, config));
  RETURN_IF_ERROR(check_spoken_tools(config, where, dialect));
  RETURN_IF_ERROR(read_max_tokens(object, where, dialect, config));
  RETURN_IF_ERROR(json_read(object, "instructions", config.instructions).with_prefix(where));
  if (config.instructions.size() > kMaxInstructionsBytes) {
    return invalid_argument("{}.instructions has {} bytes; wanted at most {}", where, config.instructions.size(),
                            kMaxInstructionsBytes);
  }
  for (std::string_view key : kSampling) {
    if (const Json* value = json_find(object, key)) config.sampling[std::string(key)] = *value;
  }
  if (const std::size_t bytes = config.settings_bytes(); bytes > kMaxSettingsBytes) {
    return invalid_argument("{}: its tools and sampling fields have {} bytes; wanted at most {}", where, bytes,
                            kMaxSettingsBytes);
  }
  // A probe: a wrong value is refused here, not by the first response.
  const auto probe = read_sampling(Json(config.sampling), model, kOpenAiDialect);
  if (!probe.ok()) return Status(probe.status().code(), member_name(where, probe.status().message()));
  return ok_status();
}

// `audio` of both, without its input.
Status read_audio_output(const Json& audio, const std::string& where, const ModelFacts& model, SessionConfig& config) {
  ASSIGN_OR_RETURN(const Json* output, read_object(audio, "output", where));
  if (!output) return ok_status();
  const std::string name = member_name(where, "output");
  RETURN_IF_ERROR(check_members(*output, name, {"format", "voice", "speed"}));
  RETURN_IF_ERROR(check_audio_format(*output, name));
  RETURN_IF_ERROR(check_value(*output, "speed", name, {1}));
  return read_output_voice(*output, name, model, config);
}

Status read_audio(const Json& session, const ModelFacts& model, const std::string& model_name, SessionConfig& config) {
  ASSIGN_OR_RETURN(const Json* audio, read_object(session, "audio", "session"));
  if (!audio) return ok_status();
  RETURN_IF_ERROR(check_members(*audio, "session.audio", {"input", "output"}));
  RETURN_IF_ERROR(read_audio_output(*audio, "session.audio", model, config));
  ASSIGN_OR_RETURN(const Json* input, read_object(*audio, "input", "session.audio"));
  if (!input) return ok_status();
  RETURN_IF_ERROR(check_members(*input, "session.audio.input", {"format", "transcription", "turn_detection"}));
  RETURN_IF_ERROR(check_audio_format(*input, "session.audio.input"));
  RETURN_IF_ERROR(
      read_transcription(*input, "transcription", "session.audio.input", model, model_name, config.transcription));
  return read_turn_detection(*input, "session.audio.input", model, config.turn_detection);
}

Status read_session(const Json& session, const nlohmann::ordered_json& ordered, const RealtimeDialect& dialect,
                    const ModelFacts& model, const std::string& model_name, SessionConfig& config) {
  RETURN_IF_ERROR(check_value(session, "model", "session", {model_name}));
  RETURN_IF_ERROR(read_shared(session, ordered, "session", dialect, model, config));
  if (dialect.beta) {
    RETURN_IF_ERROR(check_members(
        session, "session",
        joined({"model", "modalities", "instructions", "voice", "input_audio_format", "output_audio_format",
                "input_audio_transcription", "turn_detection", "max_response_output_tokens", "speed"})));
    RETURN_IF_ERROR(check_value(session, "input_audio_format", "session", {"pcm16"}));
    RETURN_IF_ERROR(check_value(session, "output_audio_format", "session", {"pcm16"}));
    RETURN_IF_ERROR(check_value(session, "speed", "session", {1}));
    RETURN_IF_ERROR(
        read_transcription(session, "input_audio_transcription", "session", model, model_name, config.transcription));
    RETURN_IF_ERROR(read_output_voice(session, "session", model, config));
    return read_turn_detection(session, "session", model, config.turn_detection);
  }
  RETURN_IF_ERROR(check_members(
      session, "session",
      joined({"type", "model", "output_modalities", "instructions", "audio", "max_output_tokens", "truncation"})));
  RETURN_IF_ERROR(check_value(session, "type", "session", {"realtime"}));
  RETURN_IF_ERROR(check_value(session, "truncation", "session", {"disabled"}));
  return read_audio(session, model, model_name, config);
}

}  // namespace

SessionConfig default_config(const ModelFacts& model) {
  SessionConfig config;
  if (model.speech) config.voice = model.speech->voices.front();
  config.audio = model.speech && model.speech->sample_rate == kRealtimeRate;
  if (model.media.audio) config.turn_detection.emplace();
  return config;
}

Status add_tools(const SessionConfig& config, nlohmann::ordered_json& chat) {
  if (config.tools.empty() && config.tool_choice == "auto") return ok_status();
  const nlohmann::ordered_json fields = {{"tools", config.tools}, {"tool_choice", config.tool_choice}};
  return translate_response_tools(Json::parse(fields.dump()), fields, chat);
}

Status update_session(const Json& session, const nlohmann::ordered_json& ordered, const RealtimeDialect& dialect,
                      const ModelFacts& model, const std::string& model_name, SessionConfig& config) {
  SessionConfig changed = config;
  RETURN_IF_ERROR(read_session(session, ordered, dialect, model, model_name, changed));
  config = std::move(changed);
  return ok_status();
}

Result<ResponseFields> read_response(const Json& response, const nlohmann::ordered_json& ordered,
                                     const RealtimeDialect& dialect, const ModelFacts& model,
                                     const SessionConfig& session) {
  ResponseFields out{.config = session};
  RETURN_IF_ERROR(check_members(
      response, "response",
      dialect.beta
          ? joined({"modalities", "instructions", "voice", "output_audio_format", "max_response_output_tokens",
                    "max_output_tokens", "conversation", "metadata"})
          : joined({"output_modalities", "instructions", "audio", "max_output_tokens", "conversation", "metadata"})));
  RETURN_IF_ERROR(read_shared(response, ordered, "response", dialect, model, out.config));
  RETURN_IF_ERROR(check_value(response, "conversation", "response", {"auto", "none"}));
  const Json* conversation = json_find(response, "conversation");
  out.in_conversation = !conversation || *conversation == "auto";
  ASSIGN_OR_RETURN(const Json* metadata, read_object(response, "metadata", "response"));
  if (metadata) out.metadata = *metadata;
  if (dialect.beta) {
    RETURN_IF_ERROR(check_value(response, "output_audio_format", "response", {"pcm16"}));
    RETURN_IF_ERROR(read_output_voice(response, "response", model, out.config));
    return out;
  }
  ASSIGN_OR_RETURN(const Json* audio, read_object(response, "audio", "response"));
  if (!audio) return out;
  RETURN_IF_ERROR(check_members(*audio, "response.audio", {"output"}));
  RETURN_IF_ERROR(read_audio_output(*audio, "response.audio", model, out.config));
  return out;
}

nlohmann::ordered_json modalities_json(const SessionConfig& config, const RealtimeDialect& dialect) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  if (!config.audio || dialect.beta) out.push_back("text");
  if (config.audio) out.push_back("audio");
  return out;
}

nlohmann::ordered_json max_tokens_json(const SessionConfig& config) {
  return config.max_tokens ? nlohmann::ordered_json(*config.max_tokens) : nlohmann::ordered_json("inf");
}

nlohmann::ordered_json session_json(const SessionConfig& config, const RealtimeDialect& dialect,
                                    const ModelFacts& model, const std::string& id, const std::string& model_name) {
  nlohmann::ordered_json out = {{"id", id},
                                {"object", "realtime.session"},
                                {"model", model_name},
                                {std::string(dialect.modalities), modalities_json(config, dialect)},
                                {"instructions", config.instructions},
                                {"tools", config.tools},
                                {"tool_choice", config.tool_choice},
                                {std::string(dialect.max_tokens), max_tokens_json(config)}};
  const nlohmann::ordered_json voice = model.speech ? nlohmann::ordered_json(config.voice) : nullptr;
  if (dialect.beta) {
    out["voice"] = voice;
    out["input_audio_format"] = out["output_audio_format"] = "pcm16";
    out["input_audio_transcription"] = transcription_json(config.transcription);
    out["turn_detection"] = turn_detection_json(config.turn_detection);
  } else {
    out["type"] = "realtime";
    out["truncation"] = "disabled";
    out["audio"] = {{"input",
                     {{"format", audio_format_json()},
                      {"transcription", transcription_json(config.transcription)},
                      {"noise_reduction", nullptr},
                      {"turn_detection", turn_detection_json(config.turn_detection)}}},
                    {"output", {{"format", audio_format_json()}, {"voice", voice}, {"speed", 1}}}};
  }
  out.update(config.sampling);
  return out;
}

}  // namespace millrace::api
