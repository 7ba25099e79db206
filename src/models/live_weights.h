// LiveWeights: a model made of tensors that a trainer sends and, for those that it does not send, of the serving
// model's.
//
//   LiveWeights weights(serving, options);
//   RETURN_IF_ERROR(weights.check(tensors));            names, shapes and dtypes, before a byte is sent
//   for each tensor: weights.add(tensor, bytes);        quantized and packed at once, as the serving one was
//   ASSIGN_OR_RETURN(auto model, weights.make(version));
//
// Names are those of the Hugging Face folder, with the prefixes of vision-language models or without
// (formats/tensor_names.h). A tied head may come under either of its names, or under both with the same bytes; rotary
// frequencies, which old checkpoints have, are dropped; frozen tensors must have the bytes that serve, and are dropped,
// too. Stacked experts (formats/stacked_experts.h) are taken apart.
//
// Owner: the stager of a live update. Thread safety: check() on one thread, then add() and make() on one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "models/frozen_tensors.h"
#include "models/load_options.h"
#include "models/model.h"

namespace millrace {

// One tensor of an update.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kBF16;  // F32, F16 or BF16
  Shape shape;

  uint64_t size_bytes() const { return storage_bytes(dtype, shape.elements()); }
};

class LiveWeights {
 public:
  // `options`: as the serving model was loaded; its pool is not used. `frozen`: null where the model has none.
  LiveWeights(std::shared_ptr<const Model> serving, LoadOptions options,
              std::shared_ptr<const FrozenTensors> frozen = nullptr);

  // kInvalidArgument with the first five problems: names that the model has not, repeated ones, other shapes.
  // kUnsupported where the serving weights are blocks of a file, into which floats would have to be quantized.
  Status check(const std::vector<TensorSpec>& tensors) const;
  // Whether nothing of the serving model would be left in the new one.
  bool covers_all(const std::vector<TensorSpec>& tensors) const;

  // `bytes`: of a tensor that was checked, rows in sequence. They are moved from where the model serves them as they
  // came; packed or dropped ones stay the caller's, to be filled again.
  Status add(const TensorSpec& tensor, Buffer& bytes);
  Result<std::shared_ptr<const Model>> make(uint64_t version);

  uint64_t serving_version() const { return serving_->weight_version(); }

 private:
  // The name under which the model serves it; empty: it has no such tensor.
  std::string serving_name(const std::string& name) const;
  // The name under which the tensor is frozen, a tied head's being the embedding's; empty: it is not.
  std::string frozen_name(const std::string& name) const;
  Status problem_of(const TensorSpec& tensor) const;
  // Whether it stands for the tensors of single experts, and those.
  bool is_stacked(const TensorSpec& tensor) const;
  Result<std::vector<SafetensorsEntry>> experts_of(const TensorSpec& tensor) const;
  // By the names under which the model has them: of stacked ones, those of the experts.
  Result<std::vector<TensorSpec>> apart(const TensorSpec& tensor) const;
  Status add_stacked(const TensorSpec& tensor, const Buffer& bytes);

  const std::shared_ptr<const Model> serving_;
  const LoadOptions options_;
  const std::shared_ptr<const FrozenTensors> frozen_;
  ThreadPool pool_{1};
  std::shared_ptr<WeightTable> table_ = std::make_shared<WeightTable>();  // of what was received
};

}  // namespace millrace
