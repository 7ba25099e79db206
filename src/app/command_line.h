// The command line with what it leaves open: each option's value comes from the first of these that has one: the
// command line, the environment (MILLRACE_KV_GIB for --kv-gib), the file of --config or MILLRACE_CONFIG, the default.
//
// What excludes an option of an earlier source is left out: `serve NAME` with MILLRACE_MODEL set serves NAME. Variables
// that are empty count as not set; those that were read are unset, since children get what they need as arguments.
//
// Thread safety: one thread, at the start.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace millrace {

// --config, of every command that is not hidden. After they have their options.
void add_config_options(CLI::App& app);

// nullopt: a command is to be run. Else the exit code; the help or the error is printed.
std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv);

// "MILLRACE_KV_GIB" of "kv-gib".
std::string variable_of(const std::string& option);

}  // namespace millrace
