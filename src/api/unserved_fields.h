// The fields of the OpenAI, Anthropic, vLLM, SGLang and llama.cpp dialects that would change an answer and are not
// served: a request that sets one is refused by the field's name. Each has neutral values, which ask for nothing and
// pass; null and absent pass always. docs/api-fields.md has the same fields as a table, which a test compares with what
// happens.
//
// Thread safety: free functions.
#pragma once

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// Of /v1/chat/completions and /v1/completions. kUnsupported with the field's name first.
Status refuse_unserved(const Json& body);
// Of endpoints that answer with text alone: `modalities` with others, and `audio`.
Status refuse_audio_output(const Json& body);
// Of /v1/messages.
Status refuse_unserved_messages(const Json& body);
// Of /v1/responses.
Status refuse_unserved_responses(const Json& body);
// Of Ollama's /api/chat and /api/generate: at the top of the body, and inside options.
Status refuse_unserved_ollama(const Json& body);
Status refuse_unserved_ollama_options(const Json& options);
// Of /generate: at the top of the body, and inside sampling_params.
Status refuse_unserved_native(const Json& body);
Status refuse_unserved_sampling(const Json& params);
// Of /v1/embeddings.
Status refuse_unserved_embeddings(const Json& body);
// Of /v1/audio/transcriptions and /v1/audio/translations: what chat serves and they do not.
Status refuse_unserved_upload(const Json& fields);
// Of /tokenize.
Status refuse_unserved_tokenize(const Json& body);

// How pictures and audio are to be read, at the top of a body or in a part of a message. Those above have it within.
Status refuse_unserved_media(const Json& object);

// repeat_last_n of Ollama and llama.cpp. Penalties count all tokens that were generated, which it calls -1; without a
// penalty there is nothing to count, and any number passes.
Status refuse_penalty_window(const Json& object);

// `neutral` is what may stand in a field that is not served; null and absent pass too.
Status refuse_unless(const Json& body, const char* key, const Json& neutral);

}  // namespace millrace::api
