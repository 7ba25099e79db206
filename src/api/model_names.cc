#include "api/model_names.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "wire/limits.h"

namespace millrace::api {

Status ModelNames::check(std::string_view name) const {
  if (std::find(names.begin(), names.end(), name) != names.end()) return ok_status();
  if (!any) {
    return error(StatusCode::kNotFound, "The model '{}' does not exist; this server has '{}'", name.substr(0, 200),
                 fmt::join(names, "', '"));
  }
  if (name.empty() || name.size() > wire::kMaxNameBytes) {
    return invalid_argument("model has {} bytes; wanted 1 to {}", name.size(), wire::kMaxNameBytes);
  }
  return ok_status();
}

Result<std::string> ModelNames::resolve(const std::optional<std::string>& name) const {
  if (!name && required) return invalid_argument("model is missing; wanted one of '{}'", fmt::join(names, "', '"));
  if (!name) return names.front();
  RETURN_IF_ERROR(check(*name));
  return *name;
}

Result<std::string> ModelNames::read(const Json& body) const {
  if (!json_find(body, "model")) return resolve(std::nullopt);
  std::string name;
  RETURN_IF_ERROR(json_read(body, "model", name));
  return resolve(name);
}

}  // namespace millrace::api
