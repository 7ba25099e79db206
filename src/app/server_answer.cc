#include "app/server_answer.h"

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

constexpr std::size_t kMaxShownBytes = 500;  // of an answer that is no JSON

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      ++i;
    } else if ((byte >= 0x20 && byte != 0x7F) || byte == '\n' || byte == '\t') {
      out += text[i];
    }
  }
  return out;
}

Result<Json> checked(const http::ClientResponse& response) {
  auto body = parse_json(response.body);
  if (response.status == 200) return body;
  std::string message = response.body.substr(0, kMaxShownBytes);
  if (body.ok() && body->is_object()) {
    const Json* error = json_find(*body, "error");
    if (error && error->is_object()) {
      if (Status status = json_read(*error, "message", message); !status.ok()) message = "no message";
    }
  }
  const char* key = response.status == 401 ? " (here: --api-key KEY, or MILLRACE_API_KEY)" : "";
  return Status(StatusCode::kUnavailable, fmt::format("HTTP {}: {}{}", response.status, printable(message), key));
}

}  // namespace millrace
