// Reading what /v1/rerank is asked, in the fields of Cohere, Jina, vLLM and SGLang.
//
// Thread safety: free function.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "api/fields.h"

namespace millrace::api {

inline constexpr std::size_t kMaxRerankDocuments = 1024;  // of one request: as many as may wait by default

struct RerankFields {
  std::string model, query, instruction;
  std::vector<std::string> documents;
  RequestFields request;
  std::string rid;  // "": the server makes one
  std::size_t top_n = kMaxRerankDocuments;
  bool return_documents = true;
};

// `documents`: whether they are in the answer where the request has no wish. kInvalidArgument or kUnsupported with the
// field's name first; kUnsupported where the model is no reranker.
Result<RerankFields> read_rerank_fields(const Json& body, const ModelFacts& model, bool documents);

}  // namespace millrace::api
