// Model: one architecture with one version of its weights, or a contiguous range of its layers.
//
// A step is three calls, so that a range of a layer split makes only those that are its own, and so that rows may begin
// as embeddings of something else than token ids:
//   embed    token ids -> hidden rows           the first range
//   forward  hidden rows through the layers     every range; reads and writes the KV pages of its layers
//   head     hidden rows -> logits              the first range, to which the rows return from the last layer
// So a tied embedding exists once, and all that samples is in one process.
//
// A Model is immutable: the shared_ptr<const Model> is the versioned handle to the weights. New weights are another
// Model, made beside the one that serves and swapped in between two steps.
//
// The same bits: every row's result depends on its own sequence's tokens and positions alone, because every op keeps
// that promise (kernels/ops.h) and nothing here mixes rows.
//
// Owner: the runner owns the pages, the workspace, the ops and the rows. Thread safety: const functions may be called
// from several threads, each with its own Ops and Workspace.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "formats/model_config.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/expert_workspace.h"
#include "models/load_options.h"
#include "models/weight_table.h"
#include "tensor/tensor.h"

namespace millrace {

// The tensors that the first range of a layer split has beside its layers.
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kFinalNormName = "model.norm.weight";
inline constexpr const char* kHeadName = "lm_head.weight";
// "model.layers.N." begins the names of those of layer N.
inline constexpr const char* kLayerPrefix = "model.layers.";

// Layers [begin, end).
struct LayerRange {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
  friend bool operator==(LayerRange, LayerRange) = default;
};

// kInvalidArgument: tie_word_embeddings is true, and kHeadName has other values than kEmbeddingName, which would serve
// in its place.
Status tied_head_differs();

// Whether a tensor of a complete model is of other ranges alone: of their layers, or what the first range has.
bool of_another_range(const ModelConfig& config, LayerRange range, std::string_view name);

// features[0, hidden_size) is added to a row behind layer `layer` of the model (deepstack).
struct RowAddition {
  int layer = 0;
  int64_t row = 0;
  const float* features = nullptr;
};

// A row as layers [0, layer) leave it is copied to hidden_size floats at `to`, before anything is added to it.
struct CapturedRow {
  int layer = 0;
  bool final_norm = false;  // its user applies it
  int64_t row = 0;
  float* to = nullptr;
};

// One ragged batch: row r stands at positions[r] of the sequence whose rows hold r. Every row belongs to a sequence.
struct Step {
  std::span<const int32_t> positions;
  std::span<const kernels::AttentionSequence> sequences;
  std::span<const kernels::KvLayer> kv;  // one for each layer of the model's range
  // Where a row has a picture before it: [rows, 3], time, height and width of each row, in place of `positions`. Rows
  // whose three are the same number p get the bits that positions = p gives.
  std::span<const std::array<float, 3>> positions3 = {};
  std::span<const RowAddition> additions = {};
  std::span<const CapturedRow> captures = {};
  // Called on the computing thread when a layer has stored the keys and values of all rows, with how many layers of the
  // range have.
  const FunctionRef<void(int stored)>* on_stored = nullptr;
};

// The activations inside a layer, allocated once for `max_rows` rows: a step allocates nothing. The contents mean
// nothing between two calls. One thread at a time.
class Workspace {
 public:
  Workspace(const ModelConfig& config, int64_t max_rows);

  int64_t max_rows() const { return max_rows_; }
  kernels::Rows normed(int64_t rows) { return take(normed_, rows, hidden_size_); }
  kernels::Rows q(int64_t rows) { return take(q_, rows, q_size_); }
  kernels::Rows k(int64_t rows) { return take(k_, rows, kv_size_); }
  kernels::Rows v(int64_t rows) { return take(v_, rows, kv_size_); }
  kernels::Rows attended(int64_t rows) { return take(attended_, rows, q_size_); }
  kernels::Rows gate(int64_t rows) { return take(gate_, rows, intermediate_size_); }
  kernels::Rows up(int64_t rows) { return take(up_, rows, intermediate_size_); }
  kernels::Rows cos(int64_t rows) { return take(cos_, rows, rotary_size_); }
  kernels::Rows sin(int64_t rows) { return take(sin_, rows, rotary_size_); }
  ExpertWorkspace& experts() { return experts_; }

 private:
  kernels::Rows take(Buffer& buffer, int64_t rows, int64_t width);

  int64_t max_rows_, hidden_size_, q_size_, kv_size_, intermediate_size_, rotary_size_;
  Buffer normed_, q_, k_, v_, attended_, gate_, up_, cos_, sin_;
  ExpertWorkspace experts_;
};

class Model {
 public:
  virtual ~Model() = default;

  const ModelConfig& config() const { return config_; }
  LayerRange layers() const { return layers_; }
  uint64_t weight_version() const { return weight_version_; }
  // Over all bytes of the weights as they were read; 0: nothing was summed (LoadOptions without a pool).
  uint64_t weights_checksum() const { return weights_->checksum(); }
  const WeightTable& weights() const { return *weights_; }

  // hidden [rows, hidden_size] = the embeddings of `tokens`, each in [0, vocab_size). CHECK: the range begins at 0.
  virtual void embed(std::span<const int32_t> tokens, kernels::Rows hidden, kernels::Ops& ops) const = 0;

  // Takes `hidden` [rows, hidden_size] through the layers, in place, and stores the rows' keys and values.
  // rows <= workspace.max_rows().
  virtual void forward(const Step& step, kernels::Rows hidden, Workspace& workspace, kernels::Ops& ops) const = 0;

  // normed [rows, hidden_size] of rows that have passed every layer; may be the same rows. CHECK: as embed().
  virtual void final_norm(kernels::ConstRows hidden, kernels::Rows normed, kernels::Ops& ops) const = 0;

  // logits [rows, vocab_size] of rows that have passed every layer. CHECK: the range begins at 0.
  virtual void head(kernels::ConstRows hidden, kernels::Rows logits, kernels::Ops& ops) const = 0;

 protected:
  // `weights` keeps the bytes behind the weights alive.
  Model(ModelConfig config, LayerRange layers, uint64_t weight_version, std::shared_ptr<const WeightTable> weights)
      : config_(std::move(config)), layers_(layers), weight_version_(weight_version), weights_(std::move(weights)) {}

  const ModelConfig config_;
  const LayerRange layers_;
  const uint64_t weight_version_;
  const std::shared_ptr<const WeightTable> weights_;
};

// The model of config.architecture over the tensors of `store`. The name and shape of every tensor of the range is
// checked against the config; those of other ranges may be there or not, and are never read.
// Errors: those of WeightStore::get (a missing tensor, a wrong shape or dtype) and check_all_taken (a tensor that this
// architecture does not have); kUnsupported for a head_dim over kernels::kMaxHeadDim; kInvalidArgument for a range that
// is outside [0, config.layers], or empty and not [0, 0), which is embedding and head alone.
Result<std::shared_ptr<const Model>> load_model(const ModelConfig& config, std::shared_ptr<WeightStore> store,
                                                LayerRange layers, uint64_t weight_version,
                                                const LoadOptions& options = {});

// All layers.
Result<std::shared_ptr<const Model>> load_model(const ModelConfig& config, std::shared_ptr<WeightStore> store,
                                                uint64_t weight_version = 1, const LoadOptions& options = {});

// A model over weights in their serving form: those of another model, of which some may be replaced (LiveWeights).
Result<std::shared_ptr<const Model>> model_of_table(const ModelConfig& config,
                                                    std::shared_ptr<const WeightTable> weights, LayerRange layers,
                                                    uint64_t weight_version);

}  // namespace millrace
