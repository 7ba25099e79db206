// Reading what the text shall be: a JSON Schema, a regular expression or a grammar, in the fields of the OpenAI, vLLM,
// SGLang and llama.cpp dialects. They are compiled where tokens are drawn (docs/structured-output.md), so what is wrong
// inside a schema is found there.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "base/json.h"
#include "base/status.h"
#include "wire/generation.h"

namespace millrace::api {

// Of the OpenAI endpoints. `text` is the body's own text, for the sequence of a schema's properties, which `body` has
// lost. kInvalidArgument, kUnsupported with the field's name first; also where two fields ask for something.
Status read_grammar(const Json& body, const std::string& text, wire::SamplingParams& out);

// Of /v1/messages: the format of output_config, and what the OpenAI endpoints have.
Status read_messages_grammar(const Json& body, const std::string& text, wire::SamplingParams& out);

// Of /v1/responses: text.format, and what the OpenAI endpoints have.
Status read_responses_grammar(const Json& body, const std::string& text, wire::SamplingParams& out);

// Of Ollama's endpoints: format, and what is this server's.
Status read_ollama_grammar(const Json& body, const std::string& text, wire::SamplingParams& out);

// Of sampling_params of /generate: `params`, which stands in `text` at the JSON pointer `path`.
Status read_native_grammar(const Json& params, const std::string& text, const std::string& path,
                           wire::SamplingParams& out);

}  // namespace millrace::api
