// For tests: a model with everything it needs to run one sequence, and the golden models of tests/golden/models.
// Included by *_test.cc only.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "formats/model_config.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/model.h"

namespace millrace {

inline Result<std::shared_ptr<const Model>> load_model_dir(const std::string& directory, uint64_t version = 1) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(directory));
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(directory));
  return load_model(dir.config, std::make_shared<WeightStore>(std::move(store)), version);
}

// tests/golden/models/tiny_*, sorted.
inline std::vector<std::string> golden_model_dirs(const std::string& source_dir) {
  std::vector<std::string> dirs;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir + "/tests/golden/models", gone)) {
    if (entry.path().filename().string().starts_with("tiny_")) dirs.push_back(entry.path().string());
  }
  std::sort(dirs.begin(), dirs.end());
  return dirs;
}

// The tensor `name`K of a golden file as a vector of T.
template <typename T>
std::vector<T> golden_values(WeightStore& golden, const std::string& name, int k) {
  const auto view = golden.get_any(name + std::to_string(k));
  CHECK(view.ok());
  const auto values = view->as<T>();
  return {values.begin(), values.end()};
}

// One sequence through one model, its pages in reverse order and full of NaN where nothing was written.
class SequenceEngine {
 public:
  SequenceEngine(std::shared_ptr<const Model> model, kernels::Isa isa, int threads, int page_size, int max_tokens,
                 DType kv_dtype = DType::kF32)
      : model_(std::move(model)),
        pool_(threads),
        ops_(kernels::make_ops(isa, pool_)),
        workspace_(model_->config(), max_tokens) {
    const ModelConfig& config = model_->config();
    const int page_count = (max_tokens + page_size - 1) / page_size;
    for (int i = 0; i < page_count; ++i) pages_.push_back(page_count - 1 - i);
    kernels::KvLayer layer;
    layer.dtype = kv_dtype;
    layer.page_count = page_count;
    layer.page_size = page_size;
    layer.kv_heads = config.kv_heads;
    layer.head_dim = config.head_dim;
    layer.page_stride_bytes = layer.page_bytes();
    for (int i = 0; i < model_->layers().count(); ++i) {
      for (void** half : {&layer.k, &layer.v}) {
        bytes_.emplace_back(static_cast<std::size_t>(page_count * layer.page_bytes()), '\xff');  // NaN in every dtype
        *half = bytes_.back().data();
      }
      kv_.push_back(layer);
    }
  }

  const ModelConfig& config() const { return model_->config(); }

  // Hidden rows [tokens, hidden_size] before layer 0.
  std::vector<float> embed(const std::vector<int32_t>& tokens) {
    std::vector<float> hidden(tokens.size() * static_cast<std::size_t>(config().hidden_size));
    model_->embed(tokens, rows(hidden, config().hidden_size), *ops_);
    return hidden;
  }
  // The rows through this model's layers, standing at `position` and after.
  void forward(std::vector<float>& hidden, int32_t position) {
    const kernels::Rows x = rows(hidden, config().hidden_size);
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < x.count; ++i) positions.push_back(position + static_cast<int32_t>(i));
    const kernels::AttentionSequence sequence{
        .row_begin = 0, .row_count = x.count, .kv_length_before = position, .pages = pages_};
    model_->forward({.positions = positions, .sequences = {&sequence, 1}, .kv = kv_}, x, workspace_, *ops_);
  }
  // Logits [tokens, vocab_size].
  std::vector<float> head(std::vector<float>& hidden) {
    const kernels::Rows x = rows(hidden, config().hidden_size);
    std::vector<float> logits(static_cast<std::size_t>(x.count * config().vocab_size));
    model_->head(x, rows(logits, config().vocab_size), *ops_);
    return logits;
  }
  // All three: the logits of every token, the first standing at `position`.
  std::vector<float> logits(const std::vector<int32_t>& tokens, int32_t position) {
    std::vector<float> hidden = embed(tokens);
    forward(hidden, position);
    return head(hidden);
  }

 private:
  static kernels::Rows rows(std::vector<float>& values, int64_t width) {
    return {values.data(), static_cast<int64_t>(values.size()) / width, width};
  }

  std::shared_ptr<const Model> model_;
  ThreadPool pool_;
  std::unique_ptr<kernels::Ops> ops_;
  Workspace workspace_;
  std::vector<int32_t> pages_;
  std::vector<std::vector<char>> bytes_;
  std::vector<kernels::KvLayer> kv_;
};

}  // namespace millrace
