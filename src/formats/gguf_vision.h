// The vision tower of a model in GGUF: a file of its own, mmproj*.gguf, in the folder of the language model's. Its
// metadata and tensors become those of the Hugging Face folder of the same model, as in formats/gguf_model.h.
//
// Read is the projector qwen3vl_merger (Qwen3-VL). The kernels of the patch embedding are stored one for each frame,
// and have the names visual.patch_embed.frames.0.weight and so on here.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "formats/gguf_model.h"
#include "formats/processor_config.h"
#include "formats/safetensors.h"

namespace millrace {

// Whether a file of this name holds a tower and no language model: mmproj*.gguf.
bool is_tower_file(std::string_view name);

// The tower beside the model whose (first) file is `model_file`; nullopt: there is none. kInvalidArgument: several.
Result<std::optional<std::string>> find_tower(const std::string& model_file);

// The config.json of the model that both make. `language`: of the language model's file alone, as gguf_model_config()
// has it. Errors name path and key; kUnsupported: another projector, or a value that changes the results.
Result<Json> add_tower(const Json& language, const GgufModel& model, const GgufModel& tower);

// The tensors of the tower under the folder's names.
Result<SafetensorsHeader> tower_header(const GgufModel& tower);

// How pictures are prepared. Counts of pixels that the file does not have are those of the published models.
Result<PixelConfig> tower_pixels(const GgufModel& tower);

}  // namespace millrace
