#include "api/ollama_error.h"

#include "base/json.h"

namespace millrace::api {
namespace {

// "messages[2].content[0].image_url.url is ..." stands for messages[2].images[0], as pictures come before the text, and
// of /api/generate, whose message is made of its fields, for images[0]. The name of a stage may stand before it.
std::string client_name(std::string message, OllamaEndpoint endpoint) {
  constexpr std::string_view kMessage = "messages[", kPart = ".content[", kImage = "images[", kUrl = ".image_url.url";
  const std::size_t at = message.find(kMessage);
  if (at != 0 && (at == std::string::npos || at < 2 || message.compare(at - 2, 2, ": ") != 0)) return message;
  const std::size_t part = message.find(kPart, at);
  if (part == std::string::npos || part > message.find(' ', at)) return message;
  message.replace(part + 1, kPart.size() - 1, kImage);
  if (const std::size_t url = message.find(kUrl, part); url != std::string::npos) message.erase(url, kUrl.size());
  if (endpoint == OllamaEndpoint::kGenerate) message.erase(at, part + 1 - at);
  return message;
}

}  // namespace

std::string render_ollama_error(const ApiError& error, OllamaEndpoint endpoint) {
  std::string out = "{\"error\":";
  json_append_string(out, client_name(error.message, endpoint));
  return out + "}";
}

http::Response ollama_error_response(const ApiError& error, OllamaEndpoint endpoint) {
  http::Response response = error_response(error);
  response.body = render_ollama_error(error, endpoint);
  return response;
}

}  // namespace millrace::api
