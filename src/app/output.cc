#include "app/output.h"

#include <cstdio>
#include <fstream>

namespace millrace {

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
