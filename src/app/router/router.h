// Serving several models: a router, and a `millrace serve` for each model that is loaded (docs/models.md).
// Thread safety: the main thread, which owns the processes.
#pragma once

#include <signal.h>

#include "app/options.h"

namespace millrace {

// Whether the options are of several models, or of one that comes and goes.
bool wants_router(const ServeOptions& options);

// From the start until a signal has ended it; returns the exit code. Signals are blocked already, keys read.
int run_router(const ServeOptions& options, const sigset_t& signals);

}  // namespace millrace
