// The progress of loading and of pulling a model: a bar on a terminal, plain lines elsewhere. Owner: the command that
// waits for the model, on its stack. Thread safety: one thread.
#pragma once

#include <signal.h>

#include <cstdio>
#include <string>

#include "models/write_progress.h"
#include "wire/messages.h"

namespace millrace {

// "[####....]  50%"
std::string progress_bar(int percent);

class LoadingProgress {
 public:
  explicit LoadingProgress(std::FILE* out);
  void update(const wire::StageStatus& status);
  void finish();

 private:
  std::FILE* out_;
  const bool terminal_;
  std::string last_what_;
  int last_percent_ = -1;
  bool drawn_ = false;
};

// Of files that are written: shows it as `what`, and ends it at a signal of `signals`, which are blocked. `shown`
// outlives it.
WriteProgress show_until_signal(LoadingProgress& shown, std::string what, const sigset_t& signals);

}  // namespace millrace
