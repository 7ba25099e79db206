// millrace show: what a model is and what it takes, before it is loaded, and before it is pulled. Thread safety: one
// thread.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace millrace {

struct ShowOptions {
  std::string model;  // a path, or ORG/NAME[:QUANT]
  std::string revision;
  int context_length = 0;  // for the estimate; 0: the model's own, kShownContext at most
  std::string kv_dtype = "f32";
};

inline constexpr int kShownContext = 8192;

void add_show_options(CLI::App& command, ShowOptions& options);
// The process's exit code: 0, 1 or kExitBadInput.
int run_show(const ShowOptions& options);

}  // namespace millrace
