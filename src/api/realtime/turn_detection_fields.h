// `turn_detection` of a session, and the audio format and the voice beside it.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "api/realtime/input_audio.h"
#include "api/realtime/session_config.h"
#include "base/json.h"

namespace millrace::api {

// Present and null: there is none. kUnsupported: another type than server_vad; a model that takes no audio.
Status read_turn_detection(const Json& object, const std::string& where, const ModelFacts& model,
                           std::optional<TurnDetection>& out);
nlohmann::ordered_json turn_detection_json(const std::optional<TurnDetection>& detection);

// {"type": "audio/pcm", "rate": 24000}.
Status check_audio_format(const Json& audio, const std::string& where);
nlohmann::ordered_json audio_format_json();

}  // namespace millrace::api
