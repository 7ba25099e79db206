#include "formats/config_fields.h"

#include <nlohmann/json.hpp>

#include "formats/model_config.h"

namespace millrace::config_fields {

// The field as an integer in [low, high]. Without a fallback it is required. `null` counts as absent.
Status read_int(const Json& root, std::string_view key, std::optional<int64_t> fallback, int64_t low, int64_t high,
                int& out) {
  int64_t value = fallback.value_or(0);
  if (!fallback && json_find(root, key) == nullptr) {
    return invalid_argument("{} is missing; wanted an integer in [{}, {}]", key, low, high);
  }
  RETURN_IF_ERROR(json_read(root, key, value));
  if (value < low || value > high) return invalid_argument("{} is {}; wanted {} to {}", key, value, low, high);
  out = static_cast<int>(value);
  return ok_status();
}

// The same for a real number; `open_low` leaves `low` itself out.
Status read_real(const Json& root, std::string_view key, std::optional<double> fallback, double low, bool open_low,
                 double high, double& out) {
  double value = fallback.value_or(0);
  const std::string wanted = fmt::format("a number {} {} and <= {}", open_low ? ">" : ">=", low, high);
  if (!fallback && json_find(root, key) == nullptr) return invalid_argument("{} is missing; wanted {}", key, wanted);
  RETURN_IF_ERROR(json_read(root, key, value));
  if (!(open_low ? value > low : value >= low) || !(value <= high)) {
    return invalid_argument("{} is {}; wanted {}", key, value, wanted);
  }
  out = value;
  return ok_status();
}

// An id field: an integer, a list of integers, or null.
Status read_ids(const Json& root, std::string_view key, int vocab_size, std::vector<int32_t>& out) {
  const Json* field = json_find(root, key);
  if (field == nullptr) return ok_status();
  const Json list = field->is_array() ? *field : Json::array({*field});
  if (list.size() > kMaxStopIds) {
    return error(StatusCode::kTooLarge, "{} has {} ids; wanted at most {}", key, list.size(), kMaxStopIds);
  }
  out.clear();
  for (const Json& item : list) {
    if (!item.is_number_integer()) {
      return invalid_argument("{} is of type {}; wanted token ids", key, json_type_name(item));
    }
    const auto id = item.is_number_unsigned() && item.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)
                        ? INT64_MAX
                        : item.get<int64_t>();
    // Some published files write -1 for "none".
    if (id == -1) continue;
    if (id < 0 || id >= vocab_size) {
      return invalid_argument("{} is {}; wanted 0 to {} (vocab_size - 1)", key, id, vocab_size - 1);
    }
    out.push_back(static_cast<int32_t>(id));
  }
  return ok_status();
}

Status read_id(const Json& root, std::string_view key, int vocab_size, std::optional<int32_t>& out) {
  std::vector<int32_t> ids;
  if (json_find(root, key) == nullptr) return ok_status();
  RETURN_IF_ERROR(read_ids(root, key, vocab_size, ids));
  out = ids.empty() ? std::nullopt : std::optional<int32_t>(ids[0]);
  return ok_status();
}

Result<Json> parse_object(std::string_view text) {
  auto root = parse_json(text);
  if (!root.ok()) return invalid_argument("{}; wanted one JSON object", root.status().message());
  if (!root->is_object()) return invalid_argument("holds JSON of type {}; wanted an object", json_type_name(*root));
  return root;
}

}  // namespace millrace::config_fields
