#include "app/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>

#include "pipeline/supervisor.h"

namespace millrace {

int exit_code_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kTooLarge:
    case StatusCode::kUnsupported:
    case StatusCode::kPermissionDenied:
      return kExitBadInput;
    default:
      return 1;
  }
}

int exit_code_of_writing(const Status& status) {
  return status.code() == StatusCode::kConflict ? kExitBadInput : exit_code_of(status);
}

void print_error(const Status& status) {
  std::fprintf(stderr, "millrace: error: %s\n", status.message().c_str());
  std::fflush(stderr);
}

void open_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) (void)::open("/dev/null", descriptor == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

int exit_code_after_output(int code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  std::cout.flush();
  if (code != 0 || (written && std::cout.good())) return code;
  print_error(error(StatusCode::kUnavailable, "standard output cannot be written"));
  return 1;
}

Status write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fputs(text.c_str(), stdout);
    return ok_status();
  }
  std::ofstream file(path, std::ios::binary);
  if (!(file << text) || !file.flush()) return error(StatusCode::kUnavailable, "{}: cannot be written", path);
  return ok_status();
}

}  // namespace millrace
