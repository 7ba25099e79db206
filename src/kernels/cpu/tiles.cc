#include "kernels/cpu/tiles.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "kernels/half.h"

namespace millrace::kernels {
namespace {

// Four rows of four 32-bit words, or eight of eight 16-bit words, turned over.
typedef uint32_t Words4 __attribute__((vector_size(16)));
typedef uint16_t Words8 __attribute__((vector_size(16)));
typedef uint64_t Words2 __attribute__((vector_size(16)));

constexpr int64_t kLineBytes = 64;
constexpr int64_t kHugePage = 2 << 20;

// Where a matrix of `bytes` begins in a buffer that has a huge page more than it.
int64_t huge_offset(const std::byte* buffer, int64_t bytes) {
  if (bytes < kHugePage) return 0;
  return (kHugePage - static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(buffer) % kHugePage)) % kHugePage;
}

// Fresh memory of whole huge pages, and of usual ones for the rest. What lies before the first is never touched, so it
// takes no memory.
std::shared_ptr<Buffer> tiles_buffer(int64_t bytes) {
  const int64_t buffer_bytes = bytes < kHugePage ? bytes : bytes + kHugePage;
  auto buffer = std::make_shared<Buffer>(static_cast<std::size_t>(buffer_bytes));
  const int64_t huge = bytes / kHugePage * kHugePage;
  // A system without huge pages refuses, and nothing is lost.
  if (huge > 0)
    (void)madvise(buffer->data() + huge_offset(buffer->data(), bytes), static_cast<std::size_t>(huge), MADV_HUGEPAGE);
  return buffer;
}

int64_t bytes_in_tiles(DType dtype, const Shape& shape) {
  return tiles_bytes(shape[0], shape[1], static_cast<int64_t>(dtype_size(dtype)));
}

template <typename V>
V load(const char* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Words of `count` source rows, `words` of each from `from` on: to[word][row].
void turn_4x4(const char* from, int64_t row_bytes, char* to, int64_t to_bytes) {
  const Words4 a = load<Words4>(from), b = load<Words4>(from + row_bytes);
  const Words4 c = load<Words4>(from + 2 * row_bytes), d = load<Words4>(from + 3 * row_bytes);
  const Words2 ab_low = (Words2)__builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words2 ab_high = (Words2)__builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words2 cd_low = (Words2)__builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Words2 cd_high = (Words2)__builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Words2 out[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 2), __builtin_shufflevector(ab_low, cd_low, 1, 3),
                         __builtin_shufflevector(ab_high, cd_high, 0, 2),
                         __builtin_shufflevector(ab_high, cd_high, 1, 3)};
  for (int i = 0; i < 4; ++i) std::memcpy(to + i * to_bytes, &out[i], sizeof out[i]);
}

void turn_8x8(const char* from, int64_t row_bytes, char* to, int64_t to_bytes) {
  Words4 low[4], high[4];  // pairs of rows: words 0..3 and 4..7, row by row
  for (int i = 0; i < 4; ++i) {
    const Words8 a = load<Words8>(from + 2 * i * row_bytes), b = load<Words8>(from + (2 * i + 1) * row_bytes);
    low[i] = (Words4)__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    high[i] = (Words4)__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  }
  for (int half = 0; half < 2; ++half) {
    const Words4* p = half == 0 ? low : high;
    const Words2 a = (Words2)__builtin_shufflevector(p[0], p[1], 0, 4, 1, 5);
    const Words2 b = (Words2)__builtin_shufflevector(p[0], p[1], 2, 6, 3, 7);
    const Words2 c = (Words2)__builtin_shufflevector(p[2], p[3], 0, 4, 1, 5);
    const Words2 d = (Words2)__builtin_shufflevector(p[2], p[3], 2, 6, 3, 7);
    const Words2 out[4] = {__builtin_shufflevector(a, c, 0, 2), __builtin_shufflevector(a, c, 1, 3),
                           __builtin_shufflevector(b, d, 0, 2), __builtin_shufflevector(b, d, 1, 3)};
    for (int i = 0; i < 4; ++i) std::memcpy(to + (half * 4 + i) * to_bytes, &out[i], sizeof out[i]);
  }
}

// One row of W into its column: the ends of a matrix, where no square of words is left.
void pack_row(const char* from, int64_t begin, int64_t end, int64_t element_bytes, bool pairs, int64_t width,
              char* to) {
  for (int64_t k = begin; k < end; ++k) {
    const int64_t at = pairs ? k / 2 * width * 4 + k % 2 * 2 : k * width * element_bytes;
    std::memcpy(to + at, from + k * element_bytes, static_cast<std::size_t>(element_bytes));
  }
}

// The words of a panel: `word` bytes each (pairs of bf16 count as one), `lanes` of them fill a vector.
struct Words {
  int64_t bytes, lanes;
  void (*turn)(const char*, int64_t, char*, int64_t);
};

}  // namespace

void pack_tile_panel(const TensorView& source, int64_t panel, char* to) {
  const int64_t n = source.shape[0], k = source.shape[1];
  const int64_t size = static_cast<int64_t>(dtype_size(source.dtype));
  const int64_t width = panel_width(n, panel);
  const int64_t rows = std::min(width, n - panel * kPanelColumns);
  const bool pairs = source.dtype == DType::kBF16;
  const Words words = source.dtype == DType::kF16 ? Words{2, 8, turn_8x8} : Words{4, 4, turn_4x4};
  const int64_t row_bytes = k * size, line_bytes = width * words.bytes;
  const char* from = static_cast<const char*>(source.data) + panel * kPanelColumns * row_bytes;
  // Whole lines of the source, so that each is fetched once; the next panel's come while this one is written.
  const int64_t full_bytes = rows % words.lanes == 0 ? row_bytes / kLineBytes * kLineBytes : 0;
  const bool more = (panel + 2) * kPanelColumns <= n;
  for (int64_t at = 0; at < full_bytes; at += kLineBytes) {
    for (int64_t row = 0; row < rows; row += words.lanes) {
      const char* rows_from = from + row * row_bytes + at;
      if (more) {
        for (int64_t i = 0; i < words.lanes; ++i) __builtin_prefetch(rows_from + (kPanelColumns + i) * row_bytes);
      }
      for (int64_t byte = 0; byte < kLineBytes; byte += 16) {
        words.turn(rows_from + byte, row_bytes, to + (at + byte) / words.bytes * line_bytes + row * words.bytes,
                   line_bytes);
      }
    }
  }
  const int64_t done = full_bytes / size;  // elements of each row
  const int64_t clean = pairs ? done / 2 * line_bytes : done * line_bytes;
  if (done < tiles_depth(k)) {
    std::memset(to + clean, 0, static_cast<std::size_t>(tiles_depth(k) * width * size - clean));
  }
  if (rows < width && done > 0) {
    for (int64_t word = 0; word < full_bytes / words.bytes; ++word) {
      std::memset(to + word * line_bytes + rows * words.bytes, 0,
                  static_cast<std::size_t>((width - rows) * words.bytes));
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    pack_row(from + row * row_bytes, done, k, size, pairs, width, to + row * words.bytes);
  }
}

Weight empty_tiles(DType dtype, const Shape& shape, std::span<std::byte>& to) {
  const int64_t bytes = bytes_in_tiles(dtype, shape);
  std::shared_ptr<Buffer> buffer = tiles_buffer(bytes);
  to = {buffer->data() + huge_offset(buffer->data(), bytes), static_cast<std::size_t>(bytes)};
  Weight weight(TensorView{.dtype = dtype, .shape = shape});
  weight.layout = WeightLayout::kTiles;
  weight.packed = std::move(buffer);
  return weight;
}

Weight pack_tiles(const TensorView& source, ThreadPool& pool, const RowsDone& rows_done) {
  const int64_t n = source.shape[0], k = source.shape[1];
  const int64_t size = static_cast<int64_t>(dtype_size(source.dtype));
  std::span<std::byte> bytes;
  Weight weight = empty_tiles(source.dtype, source.shape, bytes);
  char* to = reinterpret_cast<char*>(bytes.data());
  const int64_t panels = panel_count(n);
  const int64_t step = std::max<int64_t>(kPackStepBytes / std::max<int64_t>(kPanelColumns * k * size, 1), 1);
  for (int64_t first = 0; first < panels; first += step) {
    const int64_t count = std::min(step, panels - first);
    pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t panel = first + begin; panel < first + end; ++panel)
        pack_tile_panel(source, panel, to + panel_offset_bytes(k, size, panel));
    });
    if (rows_done) rows_done(std::min(n, (first + count) * kPanelColumns));
  }
  return weight;
}

std::span<const std::byte> tiles_span(const Weight& weight) {
  const int64_t bytes = bytes_in_tiles(weight.dtype(), weight.view.shape);
  return {weight.packed->data() + huge_offset(weight.packed->data(), bytes), static_cast<std::size_t>(bytes)};
}

const char* tiles_data(const Weight& weight) { return reinterpret_cast<const char*>(tiles_span(weight).data()); }

void read_tiles_row(const Weight& weight, int64_t row, float* to) {
  const int64_t k = weight.columns();
  const int64_t size = static_cast<int64_t>(dtype_size(weight.dtype()));
  const int64_t panel = row / kPanelColumns, column = row % kPanelColumns;
  const int64_t width = panel_width(weight.rows(), panel);
  const char* from = tiles_data(weight) + panel_offset_bytes(k, size, panel);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t at =
        weight.dtype() == DType::kBF16 ? (i / 2 * width + column) * 2 + i % 2 : i * width + column;  // in elements
    to[i] = load_weight(from, weight.dtype(), at);
  }
}

}  // namespace millrace::kernels
