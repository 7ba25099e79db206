// Where a command's text goes. Thread safety: free functions.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

// Into the file `path`, or to standard output where it is "-". kUnavailable where it cannot be written.
Status write_text(const std::string& path, const std::string& text);

}  // namespace millrace
