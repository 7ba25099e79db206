// MatrixChecksum: the checksum of a matrix in its file, taken part by part while a reader goes through its rows, when
// their bytes are in memory anyway. The same for every number of threads and every sequence of add().
//
// Thread safety: one thread at a time; drives the load's pool.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/weight.h"
#include "tensor/tensor.h"

namespace millrace {

class MatrixChecksum {
 public:
  // `view` has rows and outlives it, as the pool does. `rows_done` is called when the first rows are summed, and their
  // memory may be released (kernels::pack_weight).
  MatrixChecksum(const TensorView& view, ThreadPool& pool, kernels::RowsDone rows_done);

  // The first `rows` rows have been read.
  void add(int64_t rows);
  // Of all rows, those that were never added too.
  uint64_t value() {
    add(view_.shape[0]);
    return sum_;
  }

 private:
  const TensorView view_;
  ThreadPool& pool_;
  const kernels::RowsDone rows_done_;
  std::size_t row_bytes_ = 0;
  int64_t step_ = 1;  // rows of one part of the sum
  int64_t done_ = 0;
  uint64_t sum_ = 0;
};

}  // namespace millrace
