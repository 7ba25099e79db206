#include "formats/finite_values.h"

#include <cstring>
#include <initializer_list>

namespace millrace {
namespace {

template <typename Word>
int64_t first_not_finite(const std::byte* data, int64_t count, Word exponent_mask) {
  for (int64_t i = 0; i < count; ++i) {
    Word word;  // through memcpy: a file's bytes may lie misaligned
    std::memcpy(&word, data + static_cast<std::size_t>(i) * sizeof(Word), sizeof(Word));
    if ((word & exponent_mask) == exponent_mask) return i;
  }
  return -1;
}

// The same for the f16 scales of blocks, which stand at the offsets `scales`. The index is that of the block's first
// element.
int64_t first_not_finite_block(const std::byte* data, const SafetensorsEntry& entry,
                               std::initializer_list<std::size_t> scales) {
  const BlockSize block = dtype_block(entry.dtype);
  const int64_t blocks = entry.shape.elements() / block.elements;
  for (int64_t i = 0; i < blocks; ++i) {
    const std::byte* at = data + static_cast<std::size_t>(i) * block.bytes;
    for (const std::size_t offset : scales) {
      if (first_not_finite<uint16_t>(at + offset, 1, 0x7C00) >= 0) return i * block.elements;
    }
  }
  return -1;
}

// Of a tensor that is stored row by row.
int64_t first_not_finite_of_rows(const std::byte* data, const SafetensorsEntry& entry) {
  const int64_t count = entry.shape.elements();
  switch (entry.dtype) {
    case DType::kF32:
      return first_not_finite<uint32_t>(data, count, 0x7F800000u);
    case DType::kF16:
      return first_not_finite<uint16_t>(data, count, 0x7C00);
    case DType::kBF16:
      return first_not_finite<uint16_t>(data, count, 0x7F80);
    case DType::kF64:
      return first_not_finite<uint64_t>(data, count, 0x7FF0000000000000u);
    case DType::kQ8_0:
    case DType::kQ4_0:
      return first_not_finite_block(data, entry, {0});
    case DType::kQ4_K:
    case DType::kQ5_K:
      return first_not_finite_block(data, entry, {0, 2});
    case DType::kQ6_K:
      return first_not_finite_block(data, entry, {208});
    default:
      return -1;
  }
}

}  // namespace

int64_t first_not_finite(const std::byte* data, const SafetensorsEntry& entry) {
  if (!entry.is_transposed()) return first_not_finite_of_rows(data + entry.begin, entry);
  SafetensorsEntry column = entry;
  column.shape = Shape{entry.shape[0]};
  const std::size_t step = static_cast<std::size_t>(entry.transposed.stride) * dtype_size(entry.dtype);
  for (int64_t c = 0; c < entry.shape[1]; ++c) {
    const std::byte* at = data + entry.transposed.origin + static_cast<std::size_t>(c) * step;
    if (const int64_t row = first_not_finite_of_rows(at, column); row >= 0) return row * entry.shape[1] + c;
  }
  return -1;
}

}  // namespace millrace
