#include "api/rerank_fields.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

// Of Qwen3-Reranker, where a request has none.
constexpr const char* kInstruction = "Given a web search query, retrieve relevant passages that answer the query";

// What would change scores: parts of a document, or a document that is cut.
constexpr const char* kRefused[] = {"max_tokens_per_doc", "max_chunks_per_doc", "rank_fields", "truncate_prompt_tokens",
                                    "use_activation",     "activation",         "lora_path",   "mm_processor_kwargs"};

Result<std::string> read_text(const Json& value, const std::string& name) {
  if (value.is_string()) return value.get<std::string>();
  const Json* text = value.is_object() ? json_find(value, "text") : nullptr;
  if (text && text->is_string()) return text->get<std::string>();
  return invalid_argument("{} is of type {}; wanted a string or an object with a text", name, json_type_name(value));
}

Status read_documents(const Json& body, std::vector<std::string>& out) {
  const Json* documents = json_find(body, "documents");
  if (!documents || !documents->is_array() || documents->empty()) {
    return invalid_argument("documents is {}; wanted a list of texts",
                            !documents              ? "missing"
                            : documents->is_array() ? "empty"
                                                    : fmt::format("of type {}", json_type_name(*documents)));
  }
  if (documents->size() > kMaxRerankDocuments) {
    return invalid_argument("documents has {} entries; wanted at most {}", documents->size(), kMaxRerankDocuments);
  }
  for (std::size_t i = 0; i < documents->size(); ++i) {
    ASSIGN_OR_RETURN(std::string text, read_text((*documents)[i], fmt::format("documents[{}]", i)));
    out.push_back(std::move(text));
  }
  return ok_status();
}

}  // namespace

Result<RerankFields> read_rerank_fields(const Json& body, const ModelFacts& model, bool documents) {
  if (!model.rerank) return error(StatusCode::kUnsupported, "the model is no reranker: {}", model.no_reranking);
  for (const char* key : kRefused) RETURN_IF_ERROR(refuse_unless(body, key, nullptr));
  RerankFields out;
  ASSIGN_OR_RETURN(out.request, read_request_fields(body));
  for (const char* key : {"request_id", "rid"}) RETURN_IF_ERROR(read_name(body, key, out.rid));
  const Json* query = json_find(body, "query");
  if (!query) return invalid_argument("query is missing; wanted a text");
  ASSIGN_OR_RETURN(out.query, read_text(*query, "query"));
  RETURN_IF_ERROR(read_documents(body, out.documents));
  out.instruction = kInstruction;
  for (const char* key : {"instruction", "instruct"}) RETURN_IF_ERROR(json_read(body, key, out.instruction));
  std::optional<int64_t> top_n;
  RETURN_IF_ERROR(read_integer(body, "top_n", 1, INT32_MAX, top_n));
  if (top_n) out.top_n = static_cast<std::size_t>(*top_n);
  out.return_documents = documents;
  RETURN_IF_ERROR(json_read(body, "return_documents", out.return_documents));
  return out;
}

}  // namespace millrace::api
