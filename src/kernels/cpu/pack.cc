#include "kernels/cpu/packed.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/half.h"
#include "kernels/quantized.h"
#include "kernels/quantized_block.h"

namespace millrace::kernels {
namespace {

constexpr uint32_t kHalves = 0x0f0f0f0f;

uint32_t word_at(const void* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// Element c of the four that stand at q[j] of row `row`, j in 0..7 of a block: byte offset within a plane of vectors.
int64_t plane_offset(int64_t j, int64_t row) { return j * 64 + row * 4; }

// One block of 32 of a row of Q8_0 or Q4_0, as it stands in a file.
void pack_small(PanelKind kind, const uint8_t* from, int64_t row, int64_t block_in_group, uint8_t* header,
                uint8_t* block) {
  std::memcpy(header + block_in_group * 32 + row * 2, from, 2);
  const int64_t words = kind == PanelKind::kQ8_0 ? 8 : 4;
  for (int64_t j = 0; j < words; ++j) std::memcpy(block + plane_offset(j, row), from + 2 + 4 * j, 4);
}

// Bits 4 and 5 of q go to planes after the halves.
void pack_upper_bits(PanelKind kind, const int8_t* q, int64_t row, uint8_t* planes) {
  uint32_t upper[2] = {0, 0};
  for (int64_t j = 0; j < 8; ++j) {
    const uint32_t bits = (word_at(q + 4 * j) >> 4) & kHalves;
    if (kind == PanelKind::kQ5_K) {
      upper[0] |= bits << j;
    } else {
      upper[j / 4] |= bits << (2 * (j % 4));
    }
  }
  std::memcpy(planes + row * 4, &upper[0], 4);
  if (kind == PanelKind::kQ6_K) std::memcpy(planes + 64 + row * 4, &upper[1], 4);
}

void pack_scales(DType type, const uint8_t* from, const QuantizedBlock& block, int64_t row, uint8_t* header) {
  const bool minima = type != DType::kQ6_K;
  std::memcpy(header + row * 2, from + (minima ? 0 : 208), 2);
  if (minima) std::memcpy(header + 32 + row * 2, from + 2, 2);
  for (int64_t j = 0; j < (minima ? 8 : 16); ++j) {
    header[kPanelScales + j * 16 + row] = static_cast<uint8_t>(block.scale[j]);
  }
  for (int64_t j = 0; minima && j < 8; ++j) header[kPanelMins + j * 16 + row] = block.min[j];
}

// One block of 256 of a row: a whole group.
void pack_large(DType type, const uint8_t* from, int64_t row, uint8_t* group) {
  const PanelKind kind = panel_kind(type);
  const PanelFormat& format = kPanelFormats[static_cast<int>(kind)];
  QuantizedBlock block;
  unpack_block(type, from, block);
  pack_scales(type, from, block, row, group);
  for (int64_t b = 0; b < 8; ++b) {
    const int8_t* q = block.q + 32 * b;
    uint8_t* to = group + format.header_bytes + b * format.block_bytes;
    for (int64_t j = 0; j < 4; ++j) {
      const uint32_t word = (word_at(q + 4 * j) & kHalves) | ((word_at(q + 4 * j + 16) & kHalves) << 4);
      std::memcpy(to + plane_offset(j, row), &word, 4);
    }
    if (kind != PanelKind::kQ4_K) pack_upper_bits(kind, q, row, to + 256);
  }
}

// Rows [first, first + count) of the matrix as one panel.
void pack_panel(const TensorView& source, int64_t first, int64_t count, uint8_t* panel) {
  const int64_t columns = source.shape[1];
  const PanelKind kind = panel_kind(source.dtype);
  const PanelFormat& format = kPanelFormats[static_cast<int>(kind)];
  const auto block_bytes = static_cast<int64_t>(dtype_block(source.dtype).bytes);
  const auto row_bytes = static_cast<int64_t>(storage_bytes(source.dtype, columns));
  const uint8_t* rows = static_cast<const uint8_t*>(source.data) + first * row_bytes;
  const int64_t group_bytes = format.header_bytes + format.blocks * format.block_bytes;
  const bool small = format.blocks == 2;
  const int64_t blocks = columns / (small ? 32 : 256);
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* group = panel + (small ? b / 2 : b) * group_bytes;
    for (int64_t r = 0; r < count; ++r) {
      const uint8_t* from = rows + r * row_bytes + b * block_bytes;
      if (small) {
        pack_small(kind, from, r, b % 2, group, group + format.header_bytes + (b % 2) * format.block_bytes);
      } else {
        pack_large(source.dtype, from, r, group);
      }
    }
  }
}

// What one row has in block `b` of the panel's blocks of 32: its integers alone.
void unpack_integers(PanelKind kind, const uint8_t* block, int64_t row, int8_t* q) {
  if (kind == PanelKind::kQ8_0) {
    for (int64_t j = 0; j < 8; ++j) std::memcpy(q + 4 * j, block + plane_offset(j, row), 4);
    return;
  }
  for (int64_t j = 0; j < 4; ++j) {
    const uint32_t word = word_at(block + plane_offset(j, row));
    const uint32_t low = word & kHalves, high = (word >> 4) & kHalves;
    std::memcpy(q + 4 * j, &low, 4);
    std::memcpy(q + 4 * j + 16, &high, 4);
  }
  const uint8_t* planes = block + 256;
  for (int64_t i = 0; i < 32; ++i) {
    const int64_t byte = row * 4 + i % 4, j = i / 4;
    if (kind == PanelKind::kQ5_K) q[i] |= static_cast<int8_t>(((planes[byte] >> j) & 1) << 4);
    if (kind == PanelKind::kQ6_K) {
      q[i] |= static_cast<int8_t>(((planes[(j / 4) * 64 + byte] >> (2 * (j % 4))) & 3) << 4);
    }
  }
}

float f16_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}

// Asks for pages of 2 MiB where whole ones lie inside the buffer: reading through hundreds of megabytes then misses the
// translation cache 512 times less often. Where the system has none to give, nothing changes.
void ask_for_huge_pages(Buffer& buffer) {
  constexpr std::uintptr_t kHuge = std::uintptr_t{1} << 21;
  const auto begin = (reinterpret_cast<std::uintptr_t>(buffer.data()) + kHuge - 1) / kHuge * kHuge;
  const auto end = (reinterpret_cast<std::uintptr_t>(buffer.data()) + buffer.size_bytes()) / kHuge * kHuge;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

PanelKind panel_kind(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return PanelKind::kQ8_0;
    case DType::kQ4_0:
      return PanelKind::kQ4_0;
    case DType::kQ4_K:
      return PanelKind::kQ4_K;
    case DType::kQ5_K:
      return PanelKind::kQ5_K;
    default:
      CHECK(type == DType::kQ6_K);
      return PanelKind::kQ6_K;
  }
}

int64_t panel_bytes(DType type, int64_t columns) {
  const PanelFormat& format = kPanelFormats[static_cast<int>(panel_kind(type))];
  const int64_t blocks = columns / kPanelBlock;
  return (blocks + format.blocks - 1) / format.blocks * format.header_bytes + blocks * format.block_bytes;
}

Result<Weight> empty_panels(DType dtype, const Shape& shape, std::span<std::byte>& to) {
  const int64_t elements = dtype_block(dtype).elements, rows = shape[0], columns = shape[1];
  if (columns % elements != 0) {
    return invalid_argument("rows of {} elements of {}; wanted a multiple of {}", columns, dtype_name(dtype), elements);
  }
  const int64_t panels = (rows + kPanelRows - 1) / kPanelRows;
  auto packed = std::make_shared<Buffer>(static_cast<std::size_t>(panels * panel_bytes(dtype, columns)));
  ask_for_huge_pages(*packed);
  to = {packed->data(), packed->size_bytes()};
  Weight weight(TensorView{.dtype = dtype, .shape = shape});
  weight.layout = WeightLayout::kPanels;
  weight.packed = std::move(packed);
  return weight;
}

Result<Weight> pack_panels(const TensorView& source, ThreadPool& pool, std::optional<DType> quantize,
                           const RowsDone& rows_done) {
  const DType type = quantize.value_or(source.dtype);
  CHECK(is_quantized(type) && source.shape.rank() == 2 && source.device == Device::kHost);
  const int64_t rows = source.shape[0], columns = source.shape[1];
  std::span<std::byte> storage;
  ASSIGN_OR_RETURN(Weight weight, empty_panels(type, source.shape, storage));
  const int64_t bytes = panel_bytes(type, columns), panels = (rows + kPanelRows - 1) / kPanelRows;
  std::vector<Buffer> blocks;  // of one panel, one for each thread
  for (int i = 0; quantize && i < pool.size(); ++i) blocks.emplace_back(storage_bytes(type, kPanelRows * columns));
  uint8_t* to = reinterpret_cast<uint8_t*>(storage.data());
  const auto pack_one = [&](int64_t p, int worker) {
    const int64_t first = p * kPanelRows, count = std::min(kPanelRows, rows - first);
    // Rows that are not there, and the parts of headers that no field fills, are zeros.
    if (count < kPanelRows || type == DType::kQ6_K || columns % 64 != 0) {
      std::memset(to + p * bytes, 0, static_cast<std::size_t>(bytes));
    }
    if (!quantize) return pack_panel(source, first, count, to + p * bytes);
    std::byte* quantized = blocks[static_cast<std::size_t>(worker)].data();
    quantize_rows(source, first, count, type, quantized);
    pack_panel({.data = quantized, .dtype = type, .shape = {count, columns}}, 0, count, to + p * bytes);
  };
  const auto panel_source = static_cast<int64_t>(storage_bytes(source.dtype, kPanelRows * columns));
  const int64_t step = std::max<int64_t>(kPackStepBytes / std::max<int64_t>(panel_source, 1), 1);
  for (int64_t start = 0; start < panels; start += step) {
    const int64_t count = std::min(step, panels - start);
    pool.parallel_for(count, 4, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t p = start + begin; p < start + end; ++p) pack_one(p, worker);
    });
    if (rows_done) rows_done(std::min(rows, (start + count) * kPanelRows));
  }
  return weight;
}

void unpack_panel_row(const Weight& weight, int64_t row, float* to) {
  const DType type = weight.dtype();
  const PanelKind kind = panel_kind(type);
  const PanelFormat& format = kPanelFormats[static_cast<int>(kind)];
  const int64_t blocks = weight.columns() / kPanelBlock;
  const uint8_t* group =
      reinterpret_cast<const uint8_t*>(weight.packed->data()) + row / kPanelRows * panel_bytes(type, weight.columns());
  const int64_t r = row % kPanelRows;
  QuantizedBlock block;
  for (int64_t first = 0; first < blocks; first += format.blocks) {
    const int64_t count = std::min(format.blocks, blocks - first);
    const uint8_t* from = group + format.header_bytes;
    if (format.blocks == 2) {
      for (int64_t b = 0; b < count; ++b, from += format.block_bytes) {
        block.d = f16_at(group + b * 32 + r * 2);
        unpack_integers(kind, from, r, block.q);
        block_values(type, block, to + (first + b) * kPanelBlock);
      }
    } else {
      block.d = f16_at(group + r * 2);
      block.dmin = f16_at(group + 32 + r * 2);
      for (int64_t j = 0; j < 16; ++j) block.scale[j] = static_cast<int8_t>(group[kPanelScales + j * 16 + r]);
      for (int64_t j = 0; j < 8; ++j) block.min[j] = group[kPanelMins + j * 16 + r];
      for (int64_t b = 0; b < 8; ++b, from += format.block_bytes) unpack_integers(kind, from, r, block.q + 32 * b);
      block_values(type, block, to + first * kPanelBlock);
    }
    group += format.header_bytes + count * format.block_bytes;
  }
}

}  // namespace millrace::kernels
