#include "stages/generating/tensor_bytes.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "formats/packed_file.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "models/matrix_checksum.h"

namespace millrace {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 20;  // that are floats at one time

// `count` floats as `dtype`, at `to`. Exact for values that were of this dtype.
void store(const float* from, int64_t count, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = dtype == DType::kBF16 ? kernels::f32_to_bf16(from[i]) : kernels::f32_to_f16(from[i]);
    std::memcpy(to + i * 2, &bits, sizeof bits);
  }
}

// Reads the rows through the kernels' embedding, which reads every layout.
Status unpack(const kernels::Weight& weight, DType dtype, std::byte* to) {
  const int64_t rows = weight.rows(), columns = weight.columns();
  if (rows == 0 || columns == 0) return ok_status();
  ThreadPool pool(1);
  ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::resolve_isa());
  const auto ops = kernels::make_ops(isa, pool);
  const int64_t step = std::max<int64_t>(1, kPartElements / columns);
  std::vector<float> values(static_cast<std::size_t>(std::min(step, rows) * columns));
  std::vector<int32_t> ids;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    ids.resize(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(row));
    ops->embedding(weight, ids, kernels::Rows(values.data(), count, columns));
    store(values.data(), count * columns, dtype, to + row * columns * static_cast<int64_t>(dtype_size(dtype)));
  }
  return ok_status();
}

}  // namespace

Result<Buffer> tensor_bytes(const WeightTable::Entry& entry) {
  const kernels::Weight& weight = entry.weight;
  const TensorView& view = weight.view;
  const bool floats = entry.source == DType::kF32 || entry.source == DType::kF16 || entry.source == DType::kBF16;
  if (is_quantized(weight.dtype()) || weight.dtype() != entry.source || !floats) {
    return error(StatusCode::kUnsupported, "it serves as {} and came as {}; wanted weights that serve as they came",
                 dtype_name(weight.dtype()), dtype_name(entry.source));
  }
  Buffer bytes(storage_bytes(entry.source, view.shape.elements()));
  if (weight.layout == kernels::WeightLayout::kPlain) {
    if (bytes.size_bytes() > 0) std::memcpy(bytes.data(), view.data, bytes.size_bytes());
  } else {
    RETURN_IF_ERROR(unpack(weight, entry.source, bytes.data()));
  }
  if (!entry.checksum) return bytes;
  ThreadPool pool(1);
  const TensorView made{.data = bytes.data(), .dtype = entry.source, .shape = view.shape};
  const uint64_t sum =
      entry.packs ? MatrixChecksum(made, pool, {}).value() : checksum({bytes.data(), bytes.size_bytes()}, 0, pool);
  if (sum == *entry.checksum) return bytes;
  return internal_error("its bytes have the checksum {:016x}; wanted {:016x}, that of the bytes as they came", sum,
                        *entry.checksum);
}

}  // namespace millrace
