// Whether a directory's model scores how well a document answers a query, and how: by the logits of two tokens behind a
// prompt, as Qwen3-Reranker does, or by a head of one row (num_labels = 1) over the last token's row.
//
// Qwen3-Reranker's own config.json is that of its language model. `classifier_from_token` in it, which vLLM asks for,
// makes a reranker of it, and so does modules.json of sentence-transformers with a LogitScore (CausalScoreHead in older
// files).
//
// Thread safety: free function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "base/status.h"

namespace millrace {

// The tokens whose logits are compared: the score is the share of `yes` of the two.
struct RerankTokens {
  std::variant<std::string, int32_t> no, yes;  // texts, or ids
};
// The score is the sigmoid of the row's product with the head, the tensor score.weight.
struct RerankHead {};

using RerankerConfig = std::variant<RerankTokens, RerankHead>;

// nullopt: the model is no reranker. kUnsupported, kInvalidArgument: it is one of another kind, or its files are
// broken.
Result<std::optional<RerankerConfig>> read_reranker_config(const std::string& model_dir);

}  // namespace millrace
