#include "api/realtime/members.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/content_blocks.h"

namespace millrace::api {

std::string member_name(const std::string& where, std::string_view key) {
  return where.empty() ? std::string(key) : where + "." + std::string(key);
}

std::string shown_value(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kShownBytes);
}

Status check_members(const Json& object, const std::string& where, const std::vector<std::string_view>& served) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || std::find(served.begin(), served.end(), key) != served.end()) continue;
    return error(StatusCode::kUnsupported, "{} is not supported; leave it out",
                 member_name(where, std::string_view(key).substr(0, kShownBytes)));
  }
  return ok_status();
}

Status check_value(const Json& object, const char* key, const std::string& where, std::initializer_list<Json> wanted) {
  const Json* seen = json_find(object, key);
  if (!seen || std::find(wanted.begin(), wanted.end(), *seen) != wanted.end()) return ok_status();
  std::string list;
  for (const Json& each : wanted) list += (list.empty() ? "" : " or ") + each.dump();
  return error(StatusCode::kUnsupported, "{} is {}; wanted {} or nothing", member_name(where, key), shown_value(*seen),
               list);
}

Result<const Json*> read_object(const Json& object, const char* key, const std::string& where) {
  const Json* value = json_find(object, key);
  if (value && !value->is_object()) return wrong_type(member_name(where, key), *value, "an object");
  return value;
}

}  // namespace millrace::api
