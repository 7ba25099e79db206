// The progress of loading and of pulling a model: a bar on a terminal, plain lines elsewhere. Owner: the command that
// waits for the model, on its stack. Thread safety: one thread.
#pragma once

#include <cstdio>
#include <string>

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

}  // namespace millrace
