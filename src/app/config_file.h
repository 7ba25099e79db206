// The file of --config: options of commands, in YAML.
//
//   threads: 8                      # an option of the command that the file is given to, without the dashes
//   cors-origin: [http://a, http://b]
//   chat:                           # ... or below a command's name, of that command
//     temperature: 0
//
// Thread safety: one thread, at the start.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace millrace {

struct ConfigEntry {
  std::string name;  // of the option
  std::vector<std::string> values;
  int line = 0;
};

// What the file has for `command`, one of `app`: what stands below its name first. kInvalidArgument names file, line
// and what is wrong: a key that is no option has the nearest one beside it. kNotFound: it cannot be read.
Result<std::vector<ConfigEntry>> read_config(const std::string& path, const CLI::App& app, const CLI::App& command);

// The long names of a command's options that people may give, without the dashes.
std::vector<std::string> option_names(const CLI::App& command);

}  // namespace millrace
