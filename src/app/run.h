// millrace run: a model in the terminal with one command: a private server, or a running one, and a chat with it.
// Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"

namespace millrace {

inline constexpr std::size_t kMaxPromptBytes = 8 << 20;  // of standard input

struct RunOptions {
  ChatOptions chat;                 // `url` empty: a private server
  ModelOptions model;               // of that server
  std::string revision;             // of a model of a hub
  std::vector<std::string> prompt;  // its words; none: a chat, or what standard input has
  std::vector<std::string> given;   // names of the options that a person gave, without the dashes
};

void add_run_options(CLI::App& command, RunOptions& options);
// The process's exit code: 0, 1, kExitBadInput, that of the server that did not start, or 128 and a signal's number.
int run_run(const RunOptions& options);

}  // namespace millrace
