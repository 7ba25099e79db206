// What the files in YAML that hold options share: how they are read, and what a value of an option may be.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"

namespace YAML {
class Node;
}

namespace millrace {

inline constexpr std::size_t kMaxYamlFileBytes = 1 << 20;

// All of the file. `option`: the one that named it, for errors: kNotFound, and kInvalidArgument where it is larger.
Result<std::string> read_yaml_file(const std::string& option, const std::string& path);

// One value, or a list of some; none where it is anything else.
std::vector<std::string> option_values(const YAML::Node& value);

}  // namespace millrace
