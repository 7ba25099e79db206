#include "api/ollama_models.h"

#include <fmt/format.h>

#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/fields.h"
#include "api/model_objects.h"
#include "api/model_summary.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kNever = "9999-12-31T23:59:59Z";  // the model is loaded as long as the server runs

// "Qwen3MoeForCausalLM" is the family qwen3moe.
std::string family_of(const std::string& architecture) {
  std::string out = architecture.substr(0, architecture.find("For"));
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string size_text(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (parameters >= 1'000'000'000) return fmt::format("{:.1f}B", count / 1e9);
  if (parameters >= 1'000'000) return fmt::format("{:.1f}M", count / 1e6);
  return parameters > 0 ? fmt::format("{:.1f}K", count / 1e3) : "";
}

OrderedJson details_of(const std::string& architecture, const ModelSummary& files) {
  const std::string family = family_of(architecture);
  return {{"parent_model", ""},
          {"format", files.format},
          {"family", family},
          {"families", family.empty() ? OrderedJson::array() : OrderedJson::array({family})},
          {"parameter_size", size_text(files.parameters)},
          {"quantization_level", files.quantization}};
}

// The one model under each of its names.
std::string listed_models(const ApiContext& context, const ModelSummary& files, std::optional<int> context_length) {
  std::vector<OrderedJson> models;
  for (const std::string& name : context.names.names) {
    models.push_back(ollama_model(name, context.engine.model().architecture, files, context_length));
  }
  return ollama_list_body(models);
}

OrderedJson capabilities_of(const ModelFacts& model) {
  OrderedJson out = OrderedJson::array({"completion"});
  if (model.tool_dialect != wire::ToolDialect::kNone) out.push_back("tools");
  if (model.reasoning_dialect != wire::ReasoningDialect::kNone) out.push_back("thinking");
  if (model.media.pictures) out.push_back("vision");
  if (model.media.audio) out.push_back("audio");
  return out;
}

// What a request without options gets, where the model has defaults: a line each, as in a Modelfile.
std::string parameters_of(const ModelFacts& model) {
  std::string out;
  const auto append = [&out](const char* name, const auto& value) {
    if (value) fmt::format_to(std::back_inserter(out), "{}{:<30} {}", out.empty() ? "" : "\n", name, *value);
  };
  append("temperature", model.temperature);
  append("top_p", model.top_p);
  append("top_k", model.top_k);
  append("min_p", model.min_p);
  append("repeat_penalty", model.repetition_penalty);
  return out;
}

OrderedJson shown_model(const ModelFacts& model, const ModelSummary& files) {
  const std::string family = family_of(model.architecture);
  return {{"template", model.chat_template},
          {"parameters", parameters_of(model)},
          {"details", details_of(model.architecture, files)},
          {"model_info",
           {{"general.architecture", family},
            {"general.parameter_count", files.parameters},
            {family + ".context_length", model.context_length},
            {family + ".embedding_length", model.embedding_size},
            {family + ".vocab_size", model.vocab_size}}},
          {"capabilities", capabilities_of(model)},
          {"modified_at", rfc3339_time(files.modified)}};
}

// `model`, or `name` as older clients have it.
Status show(ApiContext& context, const ModelSummary& files, const http::Request& request,
            const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(Json body, parse_body(request.body));
  if (!json_find(body, "model") && json_find(body, "name")) body["model"] = body["name"];
  if (!json_find(body, "model")) return invalid_argument("model is missing; wanted the name of a model");
  RETURN_IF_ERROR(read_ollama_model(context.names, body).status());
  responder->send({.body = shown_model(context.engine.model(), files).dump()});
  return ok_status();
}

bool is_ready(const ApiContext& context) {
  return (context.pipeline ? context.pipeline->health() : context.engine.health()).ready;
}

void add_unserved(ApiContext& context, const char* method, const char* path, const char* why) {
  http::Route route{.method = method, .pattern = path, .require_json = false};
  add_ollama_route(context, std::move(route), OllamaEndpoint::kChat,
                   [path, why](ApiContext&, const http::Request&, const http::ResponderPtr& responder) {
                     ApiError error{.http_status = 501, .message = fmt::format("{} is not served: {}", path, why)};
                     responder->send(ollama_error_response(error));
                     return ok_status();
                   });
}

void add_unserved_routes(ApiContext& context) {
  constexpr const char* kOneModel =
      "a server has the models that it was started with; get another one with 'millrace pull ORG/NAME' and serve it "
      "with 'millrace serve ORG/NAME'";
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/blobs/{digest}"}) {
    add_unserved(context, "POST", path, kOneModel);
  }
  add_unserved(context, "DELETE", "/api/delete", kOneModel);
}

}  // namespace

OrderedJson ollama_model(const std::string& name, const std::string& architecture, const ModelSummary& files,
                         std::optional<int> context_length) {
  const std::string tagged = with_default_tag(name);
  OrderedJson out = {{"name", tagged},      {"model", tagged},        {"modified_at", rfc3339_time(files.modified)},
                     {"size", files.bytes}, {"digest", files.digest}, {"details", details_of(architecture, files)}};
  if (context_length) out.update({{"expires_at", kNever}, {"size_vram", 0}, {"context_length", *context_length}});
  return out;
}

std::string ollama_list_body(const std::vector<OrderedJson>& models) {
  // A name that is no UTF-8, of a folder, costs the others nothing.
  return OrderedJson{{"models", models}}.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string ollama_version_body() { return fmt::format(R"({{"version":"{}"}})", kOllamaApiVersion); }

Result<std::string> read_ollama_model(const ModelNames& names, const Json& body) {
  auto name = names.read(body);
  if (name.ok() || name.status().code() != StatusCode::kNotFound) return name;
  std::string asked;
  RETURN_IF_ERROR(json_read(body, "model", asked));
  return names.check(without_default_tag(asked)).ok() ? Result<std::string>(asked) : name;
}

void add_ollama_route(ApiContext& context, http::Route route, OllamaEndpoint endpoint, OllamaHandler handle) {
  route.render_error = [endpoint](int status, std::string_view message, std::string_view /*request_id*/) {
    return ollama_error_response({.http_status = status, .message = std::string(message)}, endpoint);
  };
  route.handler = [&context, endpoint, handle = std::move(handle)](http::RequestPtr request,
                                                                   http::ResponderPtr responder) {
    const Status status = handle(context, *request, responder);
    if (status.ok()) return;
    note_refusal(context, responder->label(), status);
    responder->send(ollama_error_response(field_error(status), endpoint));
  };
  context.server.add_route(std::move(route));
}

void add_ollama_model_routes(ApiContext& context) {
  const auto files = std::make_shared<const ModelSummary>(summarize_model(context.engine.model().path));
  const auto get = [&context](const char* path, http::Access access, std::function<std::string(ApiContext&)> answer) {
    add_ollama_route(
        context, {.method = "GET", .pattern = path, .access = access}, OllamaEndpoint::kChat,
        [answer = std::move(answer)](ApiContext& api, const http::Request&, const http::ResponderPtr& responder) {
          responder->send({.body = answer(api)});
          return ok_status();
        });
  };
  const http::Access models = context.public_models ? http::Access::kPublic : http::Access::kUser;
  get("/api/version", http::Access::kPublic, [](ApiContext&) { return ollama_version_body(); });
  get("/api/tags", models, [files](ApiContext& api) { return listed_models(api, *files, std::nullopt); });
  get("/api/ps", models, [files](ApiContext& api) {
    return is_ready(api) ? listed_models(api, *files, api.engine.model().context_length) : ollama_list_body({});
  });
  add_ollama_route(context, {.method = "POST", .pattern = "/api/show", .access = models}, OllamaEndpoint::kChat,
                   [files](ApiContext& api, const http::Request& request, const http::ResponderPtr& responder) {
                     return show(api, *files, request, responder);
                   });
  add_unserved_routes(context);
}

}  // namespace millrace::api
