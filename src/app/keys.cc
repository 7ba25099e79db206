#include "app/keys.h"

#include <algorithm>

#include "app/secret_file.h"

namespace millrace {
namespace {

Status check_key(const std::string& key, std::string_view option) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return invalid_argument("--{}: the key has {} bytes; wanted 1 to {}", option, key.size(), kMaxKeyBytes);
  }
  if (std::any_of(key.begin(), key.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    return invalid_argument(
        "--{}: the key has a character that no HTTP header field carries; wanted printable ASCII "
        "characters without spaces",
        option);
  }
  return ok_status();
}

bool is_given(const ServeOptions& options, const char* option) {
  return std::find(options.given.begin(), options.given.end(), option) != options.given.end();
}

}  // namespace

Status load_keys(ServeOptions& options) {
  const bool has_api_key = is_given(options, "api-key") || !options.api_key.empty();
  if (has_api_key) RETURN_IF_ERROR(check_key(options.api_key, "api-key"));
  const bool from_file = is_given(options, "admin-api-key-file") || !options.admin_api_key_file.empty();
  if (from_file) {
    ASSIGN_OR_RETURN(options.admin_api_key, read_secret(options.admin_api_key_file, "admin-api-key-file"));
  }
  if (options.admin_without_key && has_api_key) {
    return invalid_argument("--admin-without-key with --api-key; wanted one of them: with a key, admin routes take it");
  }
  if (!from_file && !is_given(options, "admin-api-key") && options.admin_api_key.empty()) return ok_status();
  const char* option = from_file ? "admin-api-key-file" : "admin-api-key";
  RETURN_IF_ERROR(check_key(options.admin_api_key, option));
  if (options.admin_api_key == options.api_key) {
    return invalid_argument("--{}: the key is that of --api-key; wanted another, or none: then admin routes take that",
                            option);
  }
  return ok_status();
}

}  // namespace millrace
