#include "api/admin_fields.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "api/fields.h"
#include "api/unserved_fields.h"

namespace millrace::api {

Result<Json> parse_command(const http::Request& request) {
  if (request.body.empty()) return Json(Json::object());
  return parse_body(request.body);
}

Status read_command_timeout(const http::Request& request, const Json& body, double& timeout_s) {
  RETURN_IF_ERROR(json_read(body, "timeout", timeout_s));
  std::string text;
  if (!request.query_value("timeout", text)) return ok_status();
  char* end = nullptr;
  timeout_s = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') {
    return invalid_argument("timeout is '{}'; wanted a number of seconds", text.substr(0, 64));
  }
  return ok_status();
}

Result<int64_t> read_flush_timeout_ms(const http::Request& request) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  double timeout_s = 0;
  RETURN_IF_ERROR(read_command_timeout(request, body, timeout_s));
  if (!(timeout_s >= 0 && timeout_s <= kMaxCommandS)) {
    return invalid_argument("timeout is {}; wanted a number of seconds in [0, {}]", timeout_s, kMaxCommandS);
  }
  return static_cast<int64_t>(std::ceil(timeout_s * 1000));
}

Status check_profile_fields(const Json& body) {
  for (const char* key : {"start_step", "num_steps"}) RETURN_IF_ERROR(refuse_unless(body, key, nullptr));
  RETURN_IF_ERROR(refuse_unless(body, "profile_by_stage", false));
  return refuse_unless(body, "output_dir", nullptr);
}

}  // namespace millrace::api
