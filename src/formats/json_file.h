// A small JSON file. Thread safety: a free function; reads a file.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

// Errors: those of read_small_file(), and of parse_json(), which then name the path.
Result<Json> read_json_file(const std::string& path, uint64_t max_bytes);

}  // namespace millrace
