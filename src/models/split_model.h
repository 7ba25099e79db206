// A model directory written as several, one for each range of a layer split (docs/layers.md): the tensors of the range
// alone, the small files of the model, and a manifest (formats/shard_manifest.h).
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "models/write_progress.h"

namespace millrace {

// Writes OUTPUT/0, OUTPUT/1 and so on. `ranges` cover the model's layers; `tensors_hash` is of the model. The folder
// comes to be in one step at the end: after an error there is none. kConflict: OUTPUT is there already; kUnsupported: a
// GGUF file; else what is wrong with the model, or with writing. Memory: some MiB beside the mapped input.
Status split_model(const std::string& model, const std::vector<LayerRange>& ranges, uint64_t tensors_hash,
                   const std::string& output, const WriteProgress& progress);

}  // namespace millrace
