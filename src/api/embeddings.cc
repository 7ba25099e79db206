// POST /v1/embeddings, and Ollama's /api/embed and /api/embeddings.
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "api/base64.h"
#include "api/choices.h"
#include "api/embedding_fields.h"
#include "api/ollama_models.h"
#include "api/prompt_forms.h"
#include "api/reply.h"
#include "api/routes.h"

namespace millrace::api {
namespace {

enum class Dialect : uint8_t { kOpenAi, kOllama, kOllamaPrompt };

struct EmbeddingShape {
  std::string model;  // as the client calls it
  Dialect dialect = Dialect::kOpenAi;
  std::size_t dimensions = 0;
  bool normalize = true;
  bool base64 = false;
};

class EmbeddingFormat : public ReplyFormat {
 public:
  explicit EmbeddingFormat(EmbeddingShape shape) : shape_(std::move(shape)) {}

  void events(const ChoiceState& /*choice*/, EventWriter& /*out*/) override {}

  Status finish(const ChoiceState& choice) override {
    RETURN_IF_ERROR(check_not_aborted(choice, "embedding"));
    const double length = length_of(choice.embedding);
    if (std::isfinite(length) && length > 0) return ok_status();
    return internal_error("input {} has an embedding of length {}; wanted a finite one over 0", choice.index, length);
  }

  std::string choice(const ChoiceState& choice) override {
    const std::vector<float> values = shown(choice.embedding);
    if (shape_.dialect != Dialect::kOpenAi) return list(values);
    std::string out = fmt::format("{{\"object\":\"embedding\",\"index\":{},\"embedding\":", choice.index);
    if (shape_.base64) {
      out += '"';
      append_base64(out, values.data(), values.size() * sizeof(float));
      out += '"';
    } else {
      out += list(values);
    }
    return out + "}";
  }

  std::string body(std::string choices, const wire::Usage& usage) override {
    if (shape_.dialect == Dialect::kOllamaPrompt) return fmt::format("{{\"embedding\":{}}}", choices);
    std::string out = shape_.dialect == Dialect::kOpenAi ? "{\"object\":\"list\",\"model\":" : "{\"model\":";
    json_append_string(out, shape_.model);
    const int32_t tokens = usage.prompt_tokens;
    if (shape_.dialect == Dialect::kOpenAi) {
      return out + fmt::format(",\"data\":[{}],\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{}}}}}", choices,
                               tokens, tokens);
    }
    const auto elapsed = std::chrono::steady_clock::now() - begin_;
    return out +
           fmt::format(",\"embeddings\":[{}],\"total_duration\":{},\"load_duration\":0,\"prompt_eval_count\":{}}}",
                       choices, std::chrono::nanoseconds(elapsed).count(), tokens);
  }

  http::Response error_response(const ApiError& error) const override {
    return shape_.dialect == Dialect::kOpenAi ? api::error_response(error) : ollama_error_response(error);
  }

 private:
  static double length_of(const std::vector<float>& values) {
    double squares = 0;
    for (const float value : values) squares += double{value} * value;
    return std::sqrt(squares);
  }

  // The first ones, to length 1.
  std::vector<float> shown(std::vector<float> values) const {
    if (shape_.dimensions > 0 && shape_.dimensions < values.size()) values.resize(shape_.dimensions);
    if (!shape_.normalize) return values;
    const double length = length_of(values);
    for (float& value : values) value = length > 0 ? static_cast<float>(value / length) : 0;
    return values;
  }

  static std::string list(const std::vector<float>& values) { return fmt::format("[{}]", fmt::join(values, ",")); }

  const EmbeddingShape shape_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void start(ApiContext& context, const http::ResponderPtr& responder, const EmbeddingShape& shape,
           const EmbeddingFields& fields, std::vector<Prompt> inputs) {
  auto reply = std::make_shared<Reply>(context, responder, std::make_unique<EmbeddingFormat>(shape), ReplyOptions{});
  SamplingFields none;
  none.max_tokens = 0;
  const std::size_t count = inputs.size();
  std::vector<GenerateRequest> requests = make_requests(std::move(inputs), {&none, 1}, fields.request, 1);
  for (GenerateRequest& request : requests) request.embed = true;
  reply->start(std::move(requests), {{fields.rid.empty() ? make_id("embd-") : fields.rid, 0, count}});
}

void embed(ApiContext& context, const http::ResponderPtr& responder, EmbeddingShape shape, EmbeddingFields fields) {
  shape.dimensions = fields.dimensions;
  shape.normalize = fields.normalize;
  shape.base64 = fields.base64;
  std::vector<Prompt> inputs = std::exchange(fields.inputs, {});
  if (!fields.truncate && !fields.cut) return start(context, responder, shape, fields, std::move(inputs));
  const auto most = static_cast<std::size_t>(context.engine.model().context_length - 1);
  with_prompt_ids(context, responder, std::move(inputs), fields.truncate,
                  [&context, responder, shape, fields, most](PromptIds ids) {
                    for (std::vector<int32_t>& one : ids) one.resize(std::min(one.size(), most));
                    start(context, responder, shape, fields, prompts_of(ids));
                  });
}

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  EmbeddingShape shape;
  ASSIGN_OR_RETURN(shape.model, context.names.read(body));
  ASSIGN_OR_RETURN(EmbeddingFields fields, read_embedding_fields(body, context.engine.model()));
  RETURN_IF_ERROR(read_rank(request, fields.request));
  embed(context, responder, std::move(shape), std::move(fields));
  return ok_status();
}

Status handle_ollama(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder,
                     bool prompt) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  EmbeddingShape shape{.dialect = prompt ? Dialect::kOllamaPrompt : Dialect::kOllama};
  ASSIGN_OR_RETURN(shape.model, read_ollama_model(context.names, body));
  ASSIGN_OR_RETURN(EmbeddingFields fields, read_ollama_embed(body, context.engine.model(), prompt));
  embed(context, responder, std::move(shape), std::move(fields));
  return ok_status();
}

}  // namespace

void add_embedding_routes(ApiContext& context) {
  for (const char* path : {"/v1/embeddings", "/embeddings"}) add_post_route(context, path, handle);
  for (const bool prompt : {false, true}) {
    add_ollama_route(context, {.method = "POST", .pattern = prompt ? "/api/embeddings" : "/api/embed"},
                     OllamaEndpoint::kGenerate,
                     [prompt](ApiContext& api, const http::Request& request, const http::ResponderPtr& responder) {
                       return handle_ollama(api, request, responder, prompt);
                     });
  }
}

}  // namespace millrace::api
