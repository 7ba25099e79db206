// How much memory a runner takes for KV pages: what the options ask for, or a share of what is free.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "formats/model_config.h"
#include "runner/runner_options.h"
#include "stages/generating/model_options.h"

namespace millrace {

// The model's context, or less where `wanted` is.
int context_length(const ModelConfig& config, int wanted);

// The runner that the options ask for, over all layers of a model. By default as many pages as the running requests can
// fill, within a quarter of the free memory less `reserved_bytes`, which weights not yet loaded will take.
// kInvalidArgument and kResourceExhausted where not one page fits, with the bytes wanted.
Result<RunnerOptions> runner_options(const ModelConfig& config, const ModelOptions& options,
                                     uint64_t reserved_bytes = 0);

}  // namespace millrace
