// A layer split in a pipeline's file: a stage `generate` with the first range of a model's layers, and stages of the
// worker `layers` with the others, each named by `layers_to` of the one before. Rows travel along it, payloads never.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <vector>

#include "pipeline/spec.h"

namespace millrace {

// The stages of the chain that `stage` has a range of, the first range first; empty: it has none. Of a spec that was
// checked.
std::vector<const StageSpec*> chain_of(const PipelineSpec& spec, const StageSpec& stage);

}  // namespace millrace
