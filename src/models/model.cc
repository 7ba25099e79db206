#include "models/model.h"

#include <charconv>
#include <cstring>

#include "formats/tensor_names.h"
#include "models/architectures.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

std::shared_ptr<const Model> make(const ModelConfig& config, LayerRange layers, uint64_t version,
                                  const std::shared_ptr<const WeightTable>& weights, WeightReader& reader) {
  switch (config.architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:  // Llama with a sliding window, which is in config.layer_window
      return make_llama(config, layers, version, weights, reader);
    case Architecture::kQwen2:
      return make_qwen2(config, layers, version, weights, reader);
    case Architecture::kQwen3:
    case Architecture::kQwen3Vl:  // Qwen3 with three rotary axes (Step::positions3)
      return make_qwen3(config, layers, version, weights, reader);
    case Architecture::kQwen3Moe:
    case Architecture::kQwen3VlMoe:
    case Architecture::kQwen3OmniMoe:  // the thinker
    case Architecture::kQwen3OmniTalker:
      return make_qwen3_moe(config, layers, version, weights, reader);
  }
  return nullptr;
}

// Of a folder that holds more than one model.
bool is_of_another_part(const ModelConfig& config, std::string_view name) {
  const bool talker = config.architecture == Architecture::kQwen3OmniTalker;
  if (config.vision && name.starts_with(kVisionPrefix)) return true;
  return ((config.audio || talker) && is_of_omni_part(name)) || (talker && name.starts_with(kThinkerPrefix));
}

// A tied head may be stored beside its twin. Both are read only then.
Status check_tied_head(const ModelConfig& config, WeightStore& store) {
  if (!config.tie_word_embeddings || !store.contains(kHeadName) || !store.contains(kEmbeddingName)) return ok_status();
  ASSIGN_OR_RETURN(const TensorView head, store.get_any(kHeadName));
  ASSIGN_OR_RETURN(const TensorView embedding, store.get_any(kEmbeddingName));
  const bool same = head.dtype == embedding.dtype && head.shape == embedding.shape &&
                    std::memcmp(head.data, embedding.data, head.size_bytes()) == 0;
  store.release(kHeadName);  // the embedding is taken next
  return same ? ok_status() : tied_head_differs().with_prefix(store.directory());
}

// Old files store the rotary frequencies, which the config implies.
Status check_all_taken(const ModelConfig& config, LayerRange range, const WeightStore& store) {
  std::vector<std::string_view> ignore = {".rotary_emb.inv_freq"};
  if (config.tie_word_embeddings) ignore.push_back(kHeadName);
  if (config.score_head) ignore.push_back(kScoreHeadName);  // its user reads it (formats/reranker_config.h)
  const std::vector<std::string> left = store.unexpected(ignore);
  for (const std::string& name : left) {
    const bool of_another_part = is_of_another_part(config, name);
    if (of_another_part || of_another_range(config, range, name)) ignore.push_back(name);
  }
  return store.check_all_taken(ignore);
}

}  // namespace

Status tied_head_differs() {
  return invalid_argument("{} differs from {}, and tie_word_embeddings is true; wanted the same bytes, or it false",
                          kHeadName, kEmbeddingName);
}

bool of_another_range(const ModelConfig& config, LayerRange range, std::string_view name) {
  if (name == kEmbeddingName || name == kFinalNormName || name == kHeadName) return range.begin > 0;
  // Towers are beside the first range, whose rows begin as their features.
  if (is_of_another_part(config, name)) return range.begin > 0;
  if (!name.starts_with(kLayerPrefix)) return false;
  name.remove_prefix(std::string_view(kLayerPrefix).size());
  int layer = -1;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (code != std::errc() || end == name.data() + name.size() || *end != '.') return false;
  return layer >= 0 && layer < config.layers && (layer < range.begin || layer >= range.end);
}

Workspace::Workspace(const ModelConfig& config, int64_t max_rows)
    : max_rows_(max_rows),
      hidden_size_(config.hidden_size),
      q_size_(config.q_size()),
      kv_size_(config.kv_size()),
      intermediate_size_(config.intermediate_size),
      rotary_size_(config.head_dim / 2),
      normed_(float_buffer(max_rows, hidden_size_)),
      q_(float_buffer(max_rows, q_size_)),
      k_(float_buffer(max_rows, kv_size_)),
      v_(float_buffer(max_rows, kv_size_)),
      attended_(float_buffer(max_rows, q_size_)),
      gate_(float_buffer(max_rows, intermediate_size_)),
      up_(float_buffer(max_rows, intermediate_size_)),
      cos_(float_buffer(max_rows, rotary_size_)),
      sin_(float_buffer(max_rows, rotary_size_)),
      experts_(config, max_rows) {}

kernels::Rows Workspace::take(Buffer& buffer, int64_t rows, int64_t width) {
  CHECK(rows <= max_rows_);
  return {buffer.as<float>().data(), rows, width};
}

Result<std::shared_ptr<const Model>> load_model(const ModelConfig& config, std::shared_ptr<WeightStore> store,
                                                LayerRange layers, uint64_t weight_version,
                                                const LoadOptions& options) {
  const bool first_alone = layers == LayerRange{0, 0};  // embedding and head
  if (layers.begin < 0 || layers.end > config.layers || (layers.begin >= layers.end && !first_alone)) {
    return invalid_argument("layers [{}, {}); wanted a range that is not empty in [0, {}], or [0, 0)", layers.begin,
                            layers.end, config.layers);
  }
  if (config.head_dim > kernels::kMaxHeadDim) {
    return error(StatusCode::kUnsupported, "head_dim is {}; wanted at most {}", config.head_dim, kernels::kMaxHeadDim);
  }
  if (layers.begin == 0) RETURN_IF_ERROR(check_tied_head(config, *store));
  const auto weights = std::make_shared<WeightTable>();
  WeightReader reader(store, options, *weights);
  std::shared_ptr<const Model> model = make(config, layers, weight_version, weights, reader);
  if (model == nullptr) {
    return error(StatusCode::kUnsupported, "architecture {}; wanted one of this build's models",
                 architecture_name(config.architecture));
  }
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(check_all_taken(config, layers, *store));
  return model;
}

Result<std::shared_ptr<const Model>> model_of_table(const ModelConfig& config,
                                                    std::shared_ptr<const WeightTable> weights, LayerRange layers,
                                                    uint64_t weight_version) {
  WeightReader reader(*weights);
  std::shared_ptr<const Model> model = make(config, layers, weight_version, weights, reader);
  CHECK(model != nullptr);  // one of this architecture serves
  RETURN_IF_ERROR(reader.status());
  return model;
}

Result<std::shared_ptr<const Model>> load_model(const ModelConfig& config, std::shared_ptr<WeightStore> store,
                                                uint64_t weight_version, const LoadOptions& options) {
  return load_model(config, std::move(store), LayerRange{0, config.layers}, weight_version, options);
}

}  // namespace millrace
