// The weight of a convolution as the matrix of a product: its elements in another sequence, packed for an instruction
// set where the options of the load name one. Convolutions are not quantized.
//
// Owner: a layer. Thread safety: immutable once it was made.
#pragma once

#include <cstdint>
#include <string>

#include "base/function_ref.h"
#include "base/status.h"
#include "kernels/weight.h"
#include "models/load_options.h"
#include "models/weight_reader.h"

namespace millrace {

class ConvWeight {
 public:
  ConvWeight() = default;
  // Reads the tensor `name` of shape `stored`. Element (row, column) of the matrix [rows, columns] is its element
  // source(row, column), in the sequence of the file. An error of the tensor is the reader's, one of packing is in
  // status().
  ConvWeight(WeightReader& reader, const std::string& name, const Shape& stored, int64_t rows, int64_t columns,
             FunctionRef<int64_t(int64_t row, int64_t column)> source, const LoadOptions& options);

  const Status& status() const { return status_; }
  const kernels::Weight& weight() const { return weight_; }

 private:
  Buffer bytes_;  // of a weight that is not packed
  kernels::Weight weight_;
  Status status_;
};

}  // namespace millrace
