// What each coding agent has to know of a server: its files, its variables, its command. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

struct LaunchTarget {
  std::string url;      // "http://127.0.0.1:30000"
  std::string api_key;  // "": none
  std::string model;
  int64_t context = 0;  // tokens
  std::string folder;   // of this client's files
};

struct LaunchPlan {
  std::string program;                 // its name in PATH
  std::string install;                 // the command that installs it
  std::vector<std::string> arguments;  // before those of the user
  std::map<std::string, std::string> env;
  std::string file, text;  // settings to write; "": none
};

inline constexpr int64_t kLaunchOutputTokens = 8192;  // of one answer at most, and a quarter of the context

std::vector<std::string> launch_clients();  // names
// nullopt: there is no such client.
std::optional<LaunchPlan> launch_plan(const std::string& client, const LaunchTarget& target);

}  // namespace millrace
