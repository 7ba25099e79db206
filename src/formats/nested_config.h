// The parts of a config.json that describes a language model with towers beside it: Qwen3-VL's, and Qwen3-Omni's
// thinker. For model_config.cc alone. Thread safety: free functions.
#pragma once

#include "base/json.h"
#include "base/status.h"
#include "formats/model_config.h"

namespace millrace {

// The thinker's part of a complete Qwen3-Omni file, with what holds for all parts.
Result<Json> thinker_part(const Json& root);

// transformers ends the answers of a complete Qwen3-Omni at the end of a turn, whatever text_config has.
Status read_turn_end(const Json& root, ModelConfig& config);

// The language model's part, with what stands beside it.
Result<Json> language_part(const Json& root);

// How the frequencies are shared out among time, height and width, from a language model's part.
Status read_mrope(const Json& language, ModelConfig& config);

// The towers and the rotary axes of a model whose `language` part has been read into `config`.
Status read_towers(const Json& root, const Json& language, ModelConfig& config);

// The fields of one language model alone, as a part of another's file. In model_config.cc.
Result<ModelConfig> read_language_config(Architecture architecture, const Json& fields);

}  // namespace millrace
