// The workers and rules that pipelines of this program may name: those of Millrace, and those that a program adds which
// is linked with workers of its own (app/program.h). Thread safety: free function.
#pragma once

#include "app/options.h"
#include "stages/library.h"

namespace millrace {

// Adds workers and rules; a plain function, as it is called again in each child process.
using AddWorkers = void (*)(Library&);

// `command_line`: the model of stages that name none.
Library make_library(const ModelOptions& command_line = {}, AddWorkers add_workers = nullptr);

}  // namespace millrace
