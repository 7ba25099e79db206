#include "models/omni/conv_weight.h"

#include <cstring>

namespace millrace {
namespace {

// `size`: of an element.
template <std::size_t size>
Buffer moved_elements(const TensorView& stored, int64_t rows, int64_t columns,
                      FunctionRef<int64_t(int64_t row, int64_t column)> source) {
  Buffer out(stored.size_bytes());
  const auto* from = static_cast<const std::byte*>(stored.data);
  std::byte* to = out.data();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column, to += size) {
      std::memcpy(to, from + source(row, column) * static_cast<int64_t>(size), size);
    }
  }
  return out;
}

}  // namespace

ConvWeight::ConvWeight(WeightReader& reader, const std::string& name, const Shape& stored, int64_t rows,
                       int64_t columns, FunctionRef<int64_t(int64_t row, int64_t column)> source,
                       const LoadOptions& options) {
  CHECK(stored.elements() == rows * columns);
  TensorView matrix = reader.tensor(name, stored);
  if (matrix.data == nullptr) return;
  if (is_quantized(matrix.dtype)) {
    status_ = error(StatusCode::kUnsupported, "tensor {} has dtype {}; wanted F32, F16 or BF16", name,
                    dtype_name(matrix.dtype));
    return;
  }
  bytes_ = dtype_size(matrix.dtype) == 4 ? moved_elements<4>(matrix, rows, columns, source)
                                         : moved_elements<2>(matrix, rows, columns, source);
  matrix.data = bytes_.data();
  matrix.shape = {rows, columns};
  weight_ = matrix;
  if (options.pool == nullptr) return;
  auto packed = kernels::pack_weight(options.isa, matrix, *options.pool);
  if (!packed.ok()) {
    status_ = packed.status().with_prefix(name);
    return;
  }
  weight_ = std::move(packed).value();
  if (weight_.packed != nullptr) bytes_ = Buffer();
}

}  // namespace millrace
