// The part of `millrace inspect` that shows a layer split. Thread safety: free functions.
#pragma once

#include <optional>

#include "app/options.h"
#include "base/status.h"
#include "formats/model_config.h"
#include "formats/weights.h"
#include "models/split_plan.h"

namespace millrace {

// What --pp, or counts of layers in --split, ask for; nullopt: no split. kInvalidArgument names the option, the value
// seen and the value wanted, also for an option that is for a split where none is asked for.
Result<std::optional<SplitPlan>> split_of(const InspectOptions& options, const ModelConfig& config,
                                          const WeightStore& store);

// A table of the ranges on standard output.
void print_split(const InspectOptions& options, const SplitPlan& plan);

}  // namespace millrace
