#include "models/omni/code_predictor.h"

#include <algorithm>
#include <numeric>

#include "formats/tensor_names.h"
#include "models/rope.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Rows;

constexpr std::string_view kPredictorPrefix = "talker.code_predictor.";

Rows rows_of(Buffer& buffer, int64_t rows, int64_t width) { return {buffer.as<float>().data(), rows, width}; }

}  // namespace

CodePredictor::Scratch::Scratch(const CodePredictor& predictor, int64_t max_frames)
    : max_frames_(max_frames),
      workspace_(predictor.config_, 2 * max_frames),
      pages_(static_cast<std::size_t>(max_frames)),
      x_(float_buffer(2 * max_frames, predictor.hidden_size())),
      rows_(float_buffer(max_frames, predictor.hidden_size())),
      logits_(float_buffer(max_frames, predictor.codebook_size())) {
  std::iota(pages_.begin(), pages_.end(), 0);
  kernels::KvLayer layer{.dtype = DType::kF32,
                         .page_count = max_frames,
                         .page_size = predictor.groups_,
                         .kv_heads = predictor.config_.kv_heads,
                         .head_dim = predictor.config_.head_dim};
  layer.page_stride_bytes = layer.page_bytes();
  const int64_t bytes = layer.page_count * layer.page_bytes();
  cache_ = Buffer(static_cast<std::size_t>(2 * predictor.config_.layers * bytes));
  for (int64_t i = 0; i < predictor.config_.layers; ++i) {
    layer.k = cache_.data() + 2 * i * bytes;
    layer.v = cache_.data() + (2 * i + 1) * bytes;
    layers_.push_back(layer);
  }
}

CodePredictor::CodePredictor(const TalkerConfig& config, std::shared_ptr<const WeightTable> weights,
                             WeightReader& reader)
    : config_(config.predictor),
      groups_(config.code_groups),
      weights_(std::move(weights)),
      inverse_frequencies_(rope_inverse_frequencies(config_.rope, config_.head_dim)) {
  const std::string name(kPredictorPrefix);
  for (int i = 0; i < config_.layers; ++i) {
    layers_.emplace_back(config_, fmt::format("{}model.layers.{}.", name, i), reader);
  }
  norm_ = reader.tensor(name + "model.norm.weight", {config_.hidden_size});
  for (int i = 0; i + 1 < groups_; ++i) {
    embeddings_.push_back(reader.matrix(fmt::format("{}model.codec_embedding.{}.weight", name, i), config_.vocab_size,
                                        config_.hidden_size));
    heads_.push_back(
        reader.matrix(fmt::format("{}lm_head.{}.weight", name, i), config_.vocab_size, config_.hidden_size));
  }
}

Result<std::shared_ptr<const CodePredictor>> CodePredictor::load(const TalkerConfig& config,
                                                                 std::shared_ptr<WeightStore> store,
                                                                 const LoadOptions& options) {
  if (config.predictor.head_dim > kernels::kMaxHeadDim) {
    return error(StatusCode::kUnsupported, "code_predictor_config: head_dim is {}; wanted at most {}",
                 config.predictor.head_dim, kernels::kMaxHeadDim);
  }
  const auto weights = std::make_shared<WeightTable>();
  WeightReader reader(store, options, *weights);
  std::shared_ptr<const CodePredictor> predictor(new CodePredictor(config, weights, reader));
  RETURN_IF_ERROR(reader.status());
  std::vector<std::string_view> ignore;
  const std::vector<std::string> left = store->unexpected({});
  for (const std::string& name : left) {
    if (!name.starts_with(kPredictorPrefix)) ignore.push_back(name);
  }
  RETURN_IF_ERROR(store->check_all_taken(ignore));
  return predictor;
}

void CodePredictor::forward(Rows x, int64_t rows_each, int32_t position, Scratch& scratch, kernels::Ops& ops) const {
  std::vector<kernels::AttentionSequence> sequences;
  std::vector<int32_t> positions;
  for (int64_t first = 0; first < x.count; first += rows_each) {
    const auto frame = static_cast<std::size_t>(first / rows_each);
    sequences.push_back({.row_begin = first,
                         .row_count = rows_each,
                         .kv_length_before = position,
                         .pages = std::span<const int32_t>(scratch.pages_).subspan(frame, 1)});
    for (int64_t i = 0; i < rows_each; ++i) positions.push_back(position + static_cast<int32_t>(i));
  }
  Workspace& ws = scratch.workspace_;
  const Rows cos = ws.cos(x.count), sin = ws.sin(x.count);
  ops.rope_table(positions, inverse_frequencies_, static_cast<float>(config_.rope.attention_factor), cos, sin);
  const Step step{.positions = positions, .sequences = sequences, .kv = scratch.layers_};
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerCall call{config_, static_cast<int>(i), step, scratch.layers_[i], x, cos, sin, ws, ops};
    layers_[i].attend(call);
    layers_[i].mlp(call);
  }
}

void CodePredictor::predict(ConstRows hidden, ConstRows first, Scratch& scratch, kernels::Ops& ops, Choose choose,
                            std::span<int32_t> codes) const {
  const int64_t frames = hidden.count, width = config_.hidden_size;
  const auto columns = static_cast<std::size_t>(groups_ - 1);
  CHECK(frames <= scratch.max_frames_ && first.count == frames);
  CHECK(hidden.width == width && first.width == width);
  CHECK(codes.size() == static_cast<std::size_t>(frames) * columns);
  if (frames == 0) return;
  const Rows pairs = rows_of(scratch.x_, 2 * frames, width), last = rows_of(scratch.rows_, frames, width);
  for (int64_t r = 0; r < frames; ++r) {
    std::copy_n(hidden.row(r), width, pairs.row(2 * r));
    std::copy_n(first.row(r), width, pairs.row(2 * r + 1));
  }
  forward(pairs, 2, 0, scratch, ops);
  for (int64_t r = 0; r < frames; ++r) std::copy_n(pairs.row(2 * r + 1), width, last.row(r));
  std::vector<int32_t> chosen(static_cast<std::size_t>(frames));
  const Rows logits = rows_of(scratch.logits_, frames, config_.vocab_size);
  for (std::size_t g = 0; g < columns; ++g) {
    ops.linear(kernels::normalized(last, norm_, static_cast<float>(config_.rms_norm_eps)), heads_[g], logits);
    choose(static_cast<int>(g) + 1, logits, chosen);
    for (std::size_t r = 0; r < chosen.size(); ++r) {
      CHECK(chosen[r] >= 0 && chosen[r] < config_.vocab_size);
      codes[r * columns + g] = chosen[r];
    }
    if (g + 1 == columns) return;
    ops.embedding(embeddings_[g], chosen, last);
    forward(last, 1, static_cast<int32_t>(g) + 2, scratch, ops);
  }
}

void CodePredictor::add_embeddings(std::span<const int32_t> codes, Scratch& scratch, kernels::Ops& ops,
                                   Rows rows) const {
  const auto columns = static_cast<std::size_t>(groups_ - 1);
  CHECK(codes.size() == static_cast<std::size_t>(rows.count) * columns && rows.width == config_.hidden_size);
  std::vector<int32_t> ids;
  for (int64_t first = 0; first < rows.count; first += scratch.max_frames_) {
    const int64_t n = std::min(scratch.max_frames_, rows.count - first);
    const Rows embedded = rows_of(scratch.rows_, n, rows.width);
    for (std::size_t g = 0; g < columns; ++g) {
      ids.clear();
      for (int64_t r = first; r < first + n; ++r) ids.push_back(codes[static_cast<std::size_t>(r) * columns + g]);
      ops.embedding(embeddings_[g], ids, embedded);
      ops.add(embedded, rows.slice(first, n));
    }
  }
}

}  // namespace millrace
