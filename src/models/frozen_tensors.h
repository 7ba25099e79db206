// FrozenTensors: tensors of a model's folder that no update changes: those of what serves beside the language model
// (towers, a talker, a vocoder, a head of labels), and what such a part reads of the language model. A trainer that
// freezes them sends them all the same, and a folder of new weights has them: they must be what serves, for the parts
// would otherwise meet weights that were trained with others.
//
// Owner: the stage that has the model. Thread safety: constant once read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/thread_pool.h"
#include "formats/weights.h"
#include "models/weight_table.h"

namespace millrace {

// The parts of a folder that serve beside its language model.
struct FrozenParts {
  bool vision = false;
  bool audio = false;
  bool speech = false;  // a talker with a vocoder; the talker reads the language model's embedding
  bool score = false;   // a head of labels

  bool any() const { return vision || audio || speech || score; }
};

class FrozenTensors {
 public:
  // Reads the bytes of all tensors of `parts` in `store` (formats/tensor_names.h). Errors: those of WeightStore.
  static Result<FrozenTensors> read(WeightStore& store, FrozenParts parts, ThreadPool& pool);
  // The same of a vision tower that was loaded with a pool: its bytes have been summed, and are not read again.
  static FrozenTensors of(const WeightTable& tower);
  // Of other parts.
  void merge(FrozenTensors other);

  bool empty() const { return tensors_.empty(); }
  // By its plain name.
  bool has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }

  // Of one that has() knows. kInvalidArgument: another shape; kUnsupported: another dtype, whose bytes cannot be
  // compared.
  Status check(std::string_view name, DType dtype, const Shape& shape) const;
  // kInvalidArgument: `bytes`, of a tensor that passed check(), are not those that serve.
  Status compare(std::string_view name, std::span<const std::byte> bytes, ThreadPool& pool) const;
  // kInvalidArgument, naming the first: a part of another folder has other tensors than this one. A folder may lack a
  // part.
  Status compare(WeightStore& other, ThreadPool& pool) const;

 private:
  struct Tensor {
    DType dtype = DType::kF32;
    Shape shape;
    uint64_t checksum = 0;
    bool packs = false;  // summed as a matrix of a load
  };
  static uint64_t sum_of(const Tensor& tensor, std::span<const std::byte> bytes, ThreadPool& pool);

  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace millrace
