#include "models/matrix_checksum.h"

#include <algorithm>
#include <utility>

#include "formats/packed_file.h"

namespace millrace {

MatrixChecksum::MatrixChecksum(const TensorView& view, ThreadPool& pool, kernels::RowsDone rows_done)
    : view_(view), pool_(pool), rows_done_(std::move(rows_done)) {
  CHECK(view.shape.rank() > 0);
  const int64_t rows = view.shape[0];
  row_bytes_ = rows > 0 ? view.size_bytes() / static_cast<std::size_t>(rows) : 0;
  step_ = std::max<int64_t>(kernels::kPackStepBytes / std::max<int64_t>(static_cast<int64_t>(row_bytes_), 1), 1);
}

// The parts are those of a sum in one go, whatever the cuts of the reader: a part that is not complete waits.
void MatrixChecksum::add(int64_t rows) {
  const auto* bytes = static_cast<const std::byte*>(view_.data);
  while (done_ < rows) {
    const int64_t count = std::min(step_, view_.shape[0] - done_);
    if (done_ + count > rows) return;
    const std::size_t begin = static_cast<std::size_t>(done_) * row_bytes_;
    sum_ = checksum({bytes + begin, static_cast<std::size_t>(count) * row_bytes_}, sum_, pool_);
    done_ += count;
    if (rows_done_) rows_done_(done_);
  }
}

}  // namespace millrace
