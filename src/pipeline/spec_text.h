// What a picture of a pipeline writes into a stage's box. Thread safety: pure functions.
#pragma once

#include <string>

#include "pipeline/spec.h"

namespace millrace {

// Where a stage runs: its process, and its host where that is another.
std::string location_of(const StageSpec& stage);
// The same, and how long a call of its worker may take where that is not as usual.
std::string location_line(const StageSpec& stage);
// Its worker, replicas and layers.
std::string worker_line(const StageSpec& stage);

}  // namespace millrace
