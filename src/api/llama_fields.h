// The body of llama.cpp's /completion: its names become those of a completion, which the readers of /v1/completions
// read, and what it has alone is checked here.
//
// Thread safety: values, and free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/fields.h"
#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

struct LlamaFields {
  CommonFields common;
  std::vector<Prompt> prompts;
  bool list = false;           // several prompts were given, be it one: so are the answers
  bool return_tokens = false;  // in answers that are not streamed
  int32_t n_probs = 0;         // so many of the likeliest beside each token
};

// `text`: of the body, as it came. kInvalidArgument or kUnsupported with the field's name first.
Result<LlamaFields> read_llama_fields(const Json& body, const std::string& text, const ModelFacts& model);

// {"n_ctx": ..., "n_predict": ..., ...}: how a request is answered, in llama.cpp's names.
std::string llama_settings(const SamplingFields& fields, const ModelFacts& model);

}  // namespace millrace::api
