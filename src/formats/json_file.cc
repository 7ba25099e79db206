#include "formats/json_file.h"

#include <nlohmann/json.hpp>

#include "formats/mapped_file.h"

namespace millrace {

Result<Json> read_json_file(const std::string& path, uint64_t max_bytes) {
  ASSIGN_OR_RETURN(const std::string text, read_small_file(path, max_bytes));
  Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_prefix(path);
  return json;
}

}  // namespace millrace
