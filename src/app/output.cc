#include "app/output.h"

#include <cstdio>
#include <fstream>

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

void print_error(const Status& status) {
  std::fprintf(stderr, "millrace: error: %s\n", status.message().c_str());
  std::fflush(stderr);
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
