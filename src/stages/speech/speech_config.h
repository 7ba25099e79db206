// What a folder's config.json has of speech: the talker and the vocoder of a complete Qwen3-Omni, checked against each
// other.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/code2wav_config.h"
#include "formats/talker_config.h"
#include "stages/engine.h"
#include "stages/generating/model_options.h"
#include "stages/generating/speech_inputs.h"

namespace millrace {

inline constexpr int32_t kVocoderRate = 24000;      // Hz, of what code2wav makes
inline constexpr int32_t kTalkerSpecialIds = 1024;  // the last of its vocabulary, which are no codes of sound

struct SpeechConfig {
  TalkerConfig talker;
  Code2WavConfig vocoder;
};

// nullopt: the model answers with text alone: options.speech is off, it is no folder, its config.json has no talker or
// turns the sound off (enable_audio_output), or its weights have none.
// Errors: those of both parsers; kInvalidArgument where the talker's codes are not the vocoder's.
Result<std::optional<SpeechConfig>> read_speech_config(const ModelOptions& options);

// Whether `seen` describes the talker and the vocoder that serve, `wanted`: weights are updated beside them, and they
// stay. kInvalidArgument with what differs.
Status check_same_speech(const SpeechConfig& seen, const SpeechConfig& wanted);

// Ids of the talker that are never drawn: the special ones but the end.
std::vector<int32_t> suppressed_codes(const TalkerConfig& config);

SpeechFacts speech_facts(const SpeechConfig& config);

// Of the stage that generates, whose answers the stage `talker` speaks. kUnsupported where the talker's
// accept_hidden_layer is no row between two layers of a thinker with so many of them.
Result<SpeechTarget> speech_target(const SpeechConfig& config, const ModelConfig& thinker, const std::string& talker);

}  // namespace millrace
