// Ollama's endpoints about models, /api/tags, /api/show, /api/ps and /api/version, a 501 for those that would change
// which models there are, and what all of Ollama's routes share.
//
// Thread safety: as routes.h.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "api/ollama_error.h"
#include "api/routes.h"

namespace millrace::api {

// The field `model` of a request, or the served name: kNotFound, kInvalidArgument. "demo:latest" is "demo" too, since
// Ollama's clients write a tag behind names without one.
Result<std::string> read_ollama_model(const ModelNames& names, const Json& body);

// Without the ":latest" that Ollama's clients write behind names that have no tag.
inline std::string_view without_default_tag(std::string_view name) {
  constexpr std::string_view kTag = ":latest";
  return name.ends_with(kTag) ? name.substr(0, name.size() - kTag.size()) : name;
}

using OllamaHandler = std::function<Status(ApiContext&, const http::Request&, const http::ResponderPtr&)>;
// Fills in the handler and the errors of this family.
void add_ollama_route(ApiContext& context, http::Route route, OllamaEndpoint endpoint, OllamaHandler handle);

void add_ollama_model_routes(ApiContext& context);

}  // namespace millrace::api
