#include "stages/generating/embedding.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace {

Status check_embed_use(const wire::TokenizedRequest& request, const RunnerFacts& model) {
  if (model.layers == 0) {
    return error(StatusCode::kUnsupported, "a model whose layers are split over processes gives no embeddings");
  }
  if (request.sampling.max_tokens != 0 || request.speech) {
    return invalid_argument("an embedding and {} are wanted; wanted an embedding alone",
                            request.speech ? "speech" : fmt::format("{} tokens", request.sampling.max_tokens));
  }
  return ok_status();
}

std::shared_ptr<RowCapture> capture_embedding(const wire::TokenizedRequest& request, const RunnerFacts& model) {
  if (model.mean_pooling) {
    auto sum = std::make_shared<RowSum>();
    sum->values.resize(static_cast<std::size_t>(model.hidden_size));
    return std::make_shared<RowCapture>(RowCapture{.layer = model.layers,
                                                   .final_norm = true,
                                                   .hidden_size = model.hidden_size,
                                                   .spans = {{0, static_cast<int32_t>(request.prompt.size()), nullptr}},
                                                   .sum = std::move(sum)});
  }
  auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(model.hidden_size));
  const auto last = static_cast<int32_t>(request.prompt.size()) - 1;
  return std::make_shared<RowCapture>(RowCapture{.layer = model.layers,
                                                 .final_norm = true,
                                                 .hidden_size = model.hidden_size,
                                                 .spans = {{last, 1, std::move(values)}},
                                                 .sum = nullptr});
}

wire::Embedding embedding_of(const RowCapture& captured) {
  std::vector<float> row(static_cast<std::size_t>(captured.hidden_size));
  if (captured.sum) {
    CHECK(captured.sum->rows == captured.end());
    std::transform(captured.sum->values.begin(), captured.sum->values.end(), row.begin(),
                   [&](double value) { return static_cast<float>(value / captured.end()); });
  } else {
    row = *captured.spans.front().values;
  }
  wire::Embedding out;
  out.values.bytes.resize(row.size() * sizeof(float));
  std::memcpy(out.values.bytes.data(), row.data(), out.values.bytes.size());
  return out;
}

}  // namespace millrace
