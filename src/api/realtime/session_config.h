// SessionConfig: what a session, or one response, wants of the model: `session` of session.update and `response` of
// response.create, in both dialects.
//
// Thread safety: values, and free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "api/realtime/dialect.h"
#include "api/realtime/input_audio.h"
#include "api/realtime/transcription.h"
#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

struct SessionConfig {
  std::string instructions;
  bool audio = false;                 // the answer is spoken
  std::string voice;                  // of a model that speaks
  std::optional<int64_t> max_tokens;  // nullopt: "inf"
  std::optional<TurnDetection> turn_detection;
  std::optional<TranscriptionConfig> transcription;                    // of the input audio; nullopt: none
  nlohmann::ordered_json sampling = nlohmann::ordered_json::object();  // fields of a chat, as they came
  // Functions that the model may call, as they came, with their keys in the client's sequence.
  nlohmann::ordered_json tools = nlohmann::ordered_json::array(), tool_choice = "auto";

  std::size_t settings_bytes() const { return sampling.dump().size() + tools.dump().size(); }
  std::size_t bytes() const { return instructions.size() + settings_bytes(); }
  bool calls() const { return !tools.empty() && tool_choice != "none"; }
};

// That of a session without an update yet.
SessionConfig default_config(const ModelFacts& model);

// The tools as the fields of a chat. kInvalidArgument, kUnsupported: one that is no function, a name that is none.
Status add_tools(const SessionConfig& config, nlohmann::ordered_json& chat);

// `session` of session.update: what it names is changed. `ordered`: the same, its keys in the client's sequence.
// kInvalidArgument, kUnsupported with the field's name first, and `config` is as it was.
Status update_session(const Json& session, const nlohmann::ordered_json& ordered, const RealtimeDialect& dialect,
                      const ModelFacts& model, const std::string& model_name, SessionConfig& config);

// The same of `response` of response.create, for this response alone.
struct ResponseFields {
  SessionConfig config;
  bool in_conversation = true;
  nlohmann::ordered_json metadata;  // as it came; null
};
Result<ResponseFields> read_response(const Json& response, const nlohmann::ordered_json& ordered,
                                     const RealtimeDialect& dialect, const ModelFacts& model,
                                     const SessionConfig& session);

nlohmann::ordered_json session_json(const SessionConfig& config, const RealtimeDialect& dialect,
                                    const ModelFacts& model, const std::string& id, const std::string& model_name);
nlohmann::ordered_json modalities_json(const SessionConfig& config, const RealtimeDialect& dialect);
nlohmann::ordered_json max_tokens_json(const SessionConfig& config);

}  // namespace millrace::api
