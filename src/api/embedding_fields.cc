#include "api/embedding_fields.h"

#include <nlohmann/json.hpp>

#include "api/prompts.h"
#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

Status check_model(const ModelFacts& model) {
  if (model.no_embeddings.empty()) return ok_status();
  return error(StatusCode::kUnsupported, "the model gives no embeddings: {}", model.no_embeddings);
}

Status read_dimensions(const Json& body, const ModelFacts& model, std::size_t& out) {
  std::optional<int64_t> dimensions;
  RETURN_IF_ERROR(read_integer(body, "dimensions", 1, model.embedding_size, dimensions));
  out = static_cast<std::size_t>(dimensions.value_or(0));
  return ok_status();
}

Status read_encoding(const Json& body, bool& base64) {
  std::string format = "float";
  RETURN_IF_ERROR(json_read(body, "encoding_format", format));
  base64 = format == "base64";
  if (base64 || format == "float") return ok_status();
  return invalid_argument("encoding_format is '{}'; wanted float or base64", format.substr(0, 64));
}

}  // namespace

Result<EmbeddingFields> read_embedding_fields(const Json& body, const ModelFacts& model) {
  RETURN_IF_ERROR(check_model(model));
  RETURN_IF_ERROR(refuse_unserved_embeddings(body));
  EmbeddingFields out;
  out.normalize = model.normalizes;
  ASSIGN_OR_RETURN(out.inputs, read_prompts(body, "input", kMaxEmbeddingInputs, model.vocab_size));
  ASSIGN_OR_RETURN(out.request, read_request_fields(body));
  for (const char* key : {"request_id", "rid"}) RETURN_IF_ERROR(read_name(body, key, out.rid));
  RETURN_IF_ERROR(read_dimensions(body, model, out.dimensions));
  RETURN_IF_ERROR(read_encoding(body, out.base64));
  for (const char* key : {"normalize", "use_activation"}) RETURN_IF_ERROR(json_read(body, key, out.normalize));
  ASSIGN_OR_RETURN(out.truncate, read_truncation(body, model));
  return out;
}

Result<EmbeddingFields> read_ollama_embed(const Json& body, const ModelFacts& model, bool prompt) {
  RETURN_IF_ERROR(check_model(model));
  EmbeddingFields out;
  const Json* options = json_find(body, "options");  // of sampling and loading: no embedding depends on them
  if (options && !options->is_object()) {
    return invalid_argument("options is of type {}; wanted an object", json_type_name(*options));
  }
  const char* const key = prompt ? "prompt" : "input";
  const Json* given = json_find(body, key);
  if (prompt && given != nullptr && !given->is_string()) {
    return invalid_argument("prompt is of type {}; wanted a string", json_type_name(*given));
  }
  ASSIGN_OR_RETURN(out.inputs, read_prompts(body, key, kMaxEmbeddingInputs, model.vocab_size));
  RETURN_IF_ERROR(read_dimensions(body, model, out.dimensions));
  out.cut = true;
  RETURN_IF_ERROR(json_read(body, "truncate", out.cut));
  return out;
}

}  // namespace millrace::api
