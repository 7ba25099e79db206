// Where a command's text goes, and its errors. Thread safety: free functions.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

// kExitBadInput for what another start will not mend; 1 for what may pass, as a want of memory does.
int exit_code_of(const Status& status);

// The one line that a user sees when a start fails: "millrace: error: ...".
void print_error(const Status& status);

// Into the file `path`, or to standard output where it is "-". kUnavailable where it cannot be written.
Status write_text(const std::string& path, const std::string& text);

}  // namespace millrace
