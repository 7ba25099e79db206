// From a model directory to what its model takes beside text, and how that is prepared.
//
// Thread safety: a free function.
#pragma once

#include <string>

#include "formats/model_config.h"
#include "stages/media/media_rows.h"

namespace millrace {

// `path`: of the directory that `config` comes from. A multimodal model without a description of its processor takes
// text only, and the log has why. Errors: those of read_processor_config(); kInvalidArgument where the processor and
// the model do not fit each other, with both values.
Result<MediaFacts> read_media_facts(const std::string& path, const ModelConfig& config);

}  // namespace millrace
