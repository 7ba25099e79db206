// Reads a model's tensors by name and shape and remembers the first error, so that an architecture lists its weights as
// a table instead of a ladder of checks. After an error every answer is an empty view; the maker of the model looks at
// status() once, before anything is computed. Matrices come as kernels::Weight, quantized and packed on the way where
// the options of the load ask for it; meanwhile the file's pages behind them are released, so that a load never holds
// two copies of more than kernels::kPackStepBytes of a matrix. What is read is summed while it is read: the store's
// checksum covers every byte that the model computes with. What is read fills a WeightTable, from which a model is read
// later without a file. Owner: the function that loads a model. Thread safety: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "models/load_options.h"
#include "models/weight_table.h"
#include "tensor/tensor.h"

namespace millrace {

// y = x weight^T + bias; the bias may be absent.
struct Linear {
  kernels::Weight weight;  // [out, in]
  TensorView bias;         // [out] or data == nullptr

  void operator()(kernels::Ops& ops, const kernels::Input& x, kernels::Rows y) const {
    ops.linear(x, weight, y, {.bias = bias});
  }
  // One of several products with the same x: ops.linear(x, {q.into(a), k.into(b)}) computes them at one go.
  kernels::Product into(kernels::Rows y) const { return {&weight, y, {.bias = bias}}; }
  // y += the same: the residual stream takes the result at no extra pass.
  void add_to(kernels::Ops& ops, const kernels::Input& x, kernels::Rows y) const {
    ops.linear(x, weight, y, {.bias = bias, .accumulate = true});
  }
};

class WeightReader {
 public:
  // From files. The pool may be null: then nothing is quantized, packed or summed, and a file of quantized weights is
  // refused. `table` gets what is read.
  WeightReader(std::shared_ptr<WeightStore> store, const LoadOptions& options, WeightTable& table)
      : store_(std::move(store)), options_(options), table_(&table), made_(table) {}
  // From a table, as it is.
  explicit WeightReader(const WeightTable& made) : made_(made) {}

  TensorView tensor(std::string_view name, const Shape& shape);

  // A matrix [rows, columns], as the load's options want it.
  kernels::Weight matrix(std::string_view name, int64_t rows, int64_t columns);

  // `name`.weight [out, in] and, where wanted, `name`.bias [out].
  Linear linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    Linear result;
    result.weight = matrix(name + ".weight", out, in);
    if (bias) result.bias = tensor(name + ".bias", {out});
    return result;
  }

  const Status& status() const { return status_; }

 private:
  Result<kernels::Weight> packed(std::string_view name, const Shape& shape);
  const kernels::Weight& made(std::string_view name, const Shape& shape);
  void put(std::string_view name, const kernels::Weight& weight, bool packs);

  const std::shared_ptr<WeightStore> store_;  // null: there are no files
  const LoadOptions options_;
  WeightTable* const table_ = nullptr;
  const WeightTable& made_;
  uint64_t bytes_done_ = 0;
  Status status_;
};

// What a matrix that comes as `stored` is quantized to, if at all.
std::optional<DType> quantized_dtype(const LoadOptions& options, std::string_view name, DType stored, int64_t columns);

}  // namespace millrace
