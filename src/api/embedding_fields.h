// Reading what /v1/embeddings and Ollama's /api/embed and /api/embeddings are asked.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/fields.h"

namespace millrace::api {

inline constexpr std::size_t kMaxEmbeddingInputs = 1024;  // of one request: as many as may wait by default

struct EmbeddingFields {
  std::vector<Prompt> inputs;
  RequestFields request;
  std::string rid;                  // "": the server makes one
  std::size_t dimensions = 0;       // of each embedding: the first ones alone; 0: all
  bool normalize = true;            // to length 1
  bool cut = false;                 // a prompt over the context is cut at its end
  bool base64 = false;              // of F32, little-endian; false: a list of numbers
  std::optional<int64_t> truncate;  // as CommonFields::truncate
};

// kInvalidArgument or kUnsupported with the field's name first; kUnsupported where the model gives no embeddings.
Result<EmbeddingFields> read_embedding_fields(const Json& body, const ModelFacts& model);
// Of /api/embed; `prompt`: of /api/embeddings, which has one text.
Result<EmbeddingFields> read_ollama_embed(const Json& body, const ModelFacts& model, bool prompt);

}  // namespace millrace::api
