// millrace split: a model directory as one folder for each range of a layer split. Thread safety: one thread.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace millrace {

struct SplitOptions {
  std::string model;
  std::string output;
  std::string split = "even";
  int pp = 0;  // 0: as many as the counts of `split`
};

void add_split_options(CLI::App& command, SplitOptions& options);

// The process's exit code: 0, kExitBadInput, or 1 after a signal.
int run_split(const SplitOptions& options);

}  // namespace millrace
