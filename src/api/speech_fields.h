// What a request wants spoken: `modalities` and `audio` of a chat, and what chats and /v1/audio/speech share: voices,
// formats, and the sampling of the codes that speech is made of, by the names that transformers has for them.
//
// Thread safety: values and free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "api/fields.h"
#include "base/json.h"
#include "base/status.h"
#include "media/audio_writer.h"
#include "stages/engine.h"

namespace millrace::api {

// Of a chat whose answer is spoken.
struct ChatSpeech {
  wire::SpeechRequest request;  // without a seed
  AudioFormat format = AudioFormat::kWav;
  bool text = true;  // the answer has its text as content too
};

// Reads `modalities`, `audio` and the fields of read_talker_sampling(). nullopt: the answer is text alone.
// kInvalidArgument, kUnsupported: with the field's name first.
Result<std::optional<ChatSpeech>> read_chat_speech(const Json& body, const ModelFacts& model, bool stream);

// kUnsupported where a chat asks for what cannot be spoken: several choices, calls of tools, reasoning, KV of another
// server. After the other fields were read.
Status check_chat_speech(const Json& body, const CommonFields& fields);

// A voice of the model in any letter case, a string or {"id": string}; absent: the first. `where`: its name in errors.
Result<std::string> read_voice(const Json* voice, std::string_view where, const SpeechFacts& facts);

// talker_temperature, talker_top_p, talker_top_k, talker_repetition_penalty, talker_max_new_tokens, talker_do_sample.
Status read_talker_sampling(const Json& body, wire::SpeechRequest& out);

// The answer to `request` is spoken; its codes are drawn with the seed of its tokens.
void speak(const wire::SpeechRequest& speech, GenerateRequest& request);

}  // namespace millrace::api
