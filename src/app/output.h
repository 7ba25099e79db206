// Where a command's text goes, and its errors. Thread safety: free functions.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

// kExitBadInput for what another start will not mend; 1 for what may pass, as a want of memory does.
int exit_code_of(const Status& status);

// Of a command that writes files: a name that is taken is bad input too.
int exit_code_of_writing(const Status& status);

// The one line that a user sees when a start fails: "millrace: error: ...".
void print_error(const Status& status);

// Descriptors 0 to 2 that are closed become /dev/null: a file that is opened later would get their number, and with it
// what is printed. For the begin of main().
void open_standard_streams();

// `code`, or 1 with a message where what was printed did not reach standard output: a full disk.
int exit_code_after_output(int code);

// Into the file `path`, or to standard output where it is "-". kUnavailable where it cannot be written.
Status write_text(const std::string& path, const std::string& text);

}  // namespace millrace
