// The workers and rules that pipelines of this program may name. Thread safety: free function.
#pragma once

#include "app/options.h"
#include "stages/library.h"

namespace millrace {

// `command_line`: the model of stages that name none.
Library make_library(const ModelOptions& command_line = {});

}  // namespace millrace
