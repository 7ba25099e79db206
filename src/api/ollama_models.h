// Ollama's endpoints about models, /api/tags, /api/show, /api/ps and /api/version, a 501 for those that would change
// which models there are, and what all of Ollama's routes share.
//
// Thread safety: as routes.h.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/model_summary.h"
#include "api/ollama_error.h"
#include "api/routes.h"

namespace millrace::api {

// The answer of /api/version: the level of Ollama's API that is answered, by the members and endpoints of its version.
// Clients compare it with the least one that they need; Millrace's own stands at /version. Calls in streams came with
// 0.8, `think` with 0.9.
inline constexpr std::string_view kOllamaApiVersion = "0.9.6";
std::string ollama_version_body();

// An object of /api/tags; with `context_length`, that of a loaded model, one of /api/ps.
nlohmann::ordered_json ollama_model(const std::string& name, const std::string& architecture, const ModelSummary& files,
                                    std::optional<int> context_length = std::nullopt);
// The whole answer of the two.
std::string ollama_list_body(const std::vector<nlohmann::ordered_json>& models);

// The field `model` of a request, or the served name: kNotFound, kInvalidArgument. "demo:latest" is "demo" too, since
// Ollama's clients write a tag behind names without one.
Result<std::string> read_ollama_model(const ModelNames& names, const Json& body);

// Without the ":latest" that Ollama's clients write behind names that have no tag.
inline std::string_view without_default_tag(std::string_view name) {
  constexpr std::string_view kTag = ":latest";
  return name.ends_with(kTag) ? name.substr(0, name.size() - kTag.size()) : name;
}

// With it where the name has no tag: clients look a name without one up as NAME:latest in the lists.
inline std::string with_default_tag(const std::string& name) {
  return name.find(':') == std::string::npos ? name + ":latest" : name;
}

using OllamaHandler = std::function<Status(ApiContext&, const http::Request&, const http::ResponderPtr&)>;
// Fills in the handler and the errors of this family.
void add_ollama_route(ApiContext& context, http::Route route, OllamaEndpoint endpoint, OllamaHandler handle);

void add_ollama_model_routes(ApiContext& context);

}  // namespace millrace::api
