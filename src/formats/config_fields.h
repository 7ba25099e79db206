// Fields of the JSON files of a model directory, range-checked. For the readers of this folder alone.
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace::config_fields {

// The field as an integer in [low, high]. Without a fallback it is required. `null` counts as absent.
Status read_int(const Json& root, std::string_view key, std::optional<int64_t> fallback, int64_t low, int64_t high,
                int& out);

// The same for a real number; `open_low` leaves `low` itself out.
Status read_real(const Json& root, std::string_view key, std::optional<double> fallback, double low, bool open_low,
                 double high, double& out);

// An id field: an integer, a list of integers, or null.
Status read_ids(const Json& root, std::string_view key, int vocab_size, std::vector<int32_t>& out);

Status read_id(const Json& root, std::string_view key, int vocab_size, std::optional<int32_t>& out);

Result<Json> parse_object(std::string_view text);

// Runs `parse`, names the file in its error, and lets no exception of the JSON library out.
template <typename T, typename Parse>
Result<T> guarded(std::string_view path, const Parse& parse) {
  try {
    Result<T> result = parse();
    if (!result.ok()) return result.status().with_prefix(path);
    return result;
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "{}: no memory left to read it", path);
  } catch (const std::exception& e) {
    return internal_error("{}: {}", path, e.what());
  }
}

}  // namespace millrace::config_fields
