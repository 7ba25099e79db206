// millrace quantize: a model as one GGUF file, its weights in the type asked for. Thread safety: one thread.
#pragma once

#include "models/quantize_model.h"

namespace CLI {
class App;
}

namespace millrace {

void add_quantize_options(CLI::App& command, QuantizeOptions& options);

// The process's exit code: kExitBadInput, or 1 where another try may succeed: a full disk, a signal.
int run_quantize(const QuantizeOptions& options);

}  // namespace millrace
