// The progress of a pull: a bar on a terminal, a line for each quarter elsewhere; notes
// between. Owner: the command that pulls, on its stack. Thread safety: update() and note() from any thread of the pull.
#pragma once

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>

#include "hub/pull.h"

namespace millrace {

class PullProgressLine {
 public:
  PullProgressLine(std::FILE* out, std::string name);
  ~PullProgressLine() { clear(); }
  PullProgressLine(const PullProgressLine&) = delete;
  PullProgressLine& operator=(const PullProgressLine&) = delete;

  void update(const hub::PullProgress& progress);
  void note(const std::string& text);

 private:
  void clear();
  void draw(const hub::PullProgress& progress, int percent);

  std::FILE* const out_;
  const std::string name_;
  const bool terminal_;
  std::mutex mutex_;  // guards what follows
  std::chrono::steady_clock::time_point begun_{}, drawn_at_{};
  uint64_t begun_bytes_ = 0;  // that were there when it began
  int last_step_ = -1;
  bool drawn_ = false;
};

}  // namespace millrace
