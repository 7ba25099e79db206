// millrace pull, list, show and rm: models of a hub by name, and the cache that holds them. Owner: the
// program's command line (program.cc). Thread safety: the main thread.
#pragma once

#include <optional>
#include <string>

#include "app/show.h"

namespace CLI {
class App;
}

namespace millrace {

struct PullCommandOptions {
  std::string model;
  std::string revision = "main";
  int parallel = 4;
};

struct ListOptions {
  bool json = false;
};

struct RemoveOptions {
  std::string model;
};

// These subcommands on a command line.
class HubCommandLine {
 public:
  void add_to(CLI::App& app);
  // The exit code of the one that was given: 0, 1 (it failed, and may pass another time) or kExitBadInput. nullopt:
  // none was.
  std::optional<int> run() const;

 private:
  CLI::App* pull_ = nullptr;
  CLI::App* list_ = nullptr;
  CLI::App* remove_ = nullptr;
  CLI::App* show_ = nullptr;
  PullCommandOptions pull_options_;
  ListOptions list_options_;
  RemoveOptions remove_options_;
  ShowOptions show_options_;
};

}  // namespace millrace
