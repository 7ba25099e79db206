// millrace launch: starts a coding agent with the settings for a running server (docs/clients.md). Settings are
// environment variables of that one process, or files in a folder of this program; a user's files stay as they
// are. Thread safety: one thread.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace millrace {

struct LaunchOptions {
  std::string client;                  // "codex", ...
  std::vector<std::string> arguments;  // for it
  std::string url = "http://127.0.0.1:30000";
  std::string api_key;
  std::string model;   // as the server names it; "": its first
  bool print = false;  // show the settings, write and start nothing
};

void add_launch_options(CLI::App& command, LaunchOptions& options);
// The process's exit code: 1, kExitBadInput, or that of the client, which takes this process's place.
int run_launch(const LaunchOptions& options);

}  // namespace millrace
