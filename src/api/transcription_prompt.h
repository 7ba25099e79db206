// The prompt that asks a model for the text of an audio: of uploads (transcriptions.cc) and of what is spoken in
// /v1/realtime.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "api/chat_prompt.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

// As the model's authors ask for it. `language`: ISO 639-1, or its English name; "": the model finds it.
// kInvalidArgument: one that is unknown; `where` is its field.
Result<std::string> transcription_instruction(const std::string& language, const std::string& where);
// What is put behind an instruction: the client's words about context and spelling.
std::string transcription_context(const std::string& words);

// `media`: the one audio.
ChatPrompt transcription_prompt(PromptMediaList media, const std::string& instruction, const ModelFacts& model);

}  // namespace millrace::api
