// Reads a model's tensors by name and shape and remembers the first error, so that an architecture lists its weights as
// a table instead of a ladder of checks. After an error every answer is an empty view; the maker of the model looks at
// status() once, before anything is computed. Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/weights.h"
#include "kernels/ops.h"
#include "tensor/tensor.h"

namespace millrace {

// y = x weight^T + bias; the bias may be absent.
struct Linear {
  TensorView weight;  // [out, in]
  TensorView bias;    // [out] or data == nullptr

  void operator()(kernels::Ops& ops, kernels::ConstRows x, kernels::Rows y) const {
    ops.linear(x, weight, y, {.bias = bias});
  }
  // y += the same: the residual stream takes the result at no extra pass.
  void add_to(kernels::Ops& ops, kernels::ConstRows x, kernels::Rows y) const {
    ops.linear(x, weight, y, {.bias = bias, .accumulate = true});
  }
};

class WeightReader {
 public:
  explicit WeightReader(WeightStore& store) : store_(store) {}

  TensorView tensor(std::string_view name, const Shape& shape) {
    if (!status_.ok()) return {};
    Result<TensorView> view = store_.get(name, shape);
    if (!view.ok()) {
      status_ = view.status();
      return {};
    }
    return *view;
  }
  // `name`.weight [out, in] and, where wanted, `name`.bias [out].
  Linear linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    Linear result;
    result.weight = tensor(name + ".weight", {out, in});
    if (bias) result.bias = tensor(name + ".bias", {out});
    return result;
  }

  const Status& status() const { return status_; }

 private:
  WeightStore& store_;
  Status status_;
};

}  // namespace millrace
