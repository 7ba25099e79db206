// Products with panels by AMX int8 tiles where many rows share the weights, by AVX-512 VNNI where few do or a type has
// blocks of 256: the bits are the same. This file alone is compiled with those flags; see kernel_table.h for what it
// must not do. No include but the table and the intrinsics.
//
// A block of 32 k of a panel is the B tile of one TDPBSSD: 8 rows of 64 bytes; 16 rows of x with 32 bytes of each are
// the A tile. The products of a block go to memory, and are scaled and added from there while the tiles work on the
// next.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 says it of its own intrinsics
#endif
#include <immintrin.h>

#include "kernels/cpu/panel_table.h"

namespace millrace::kernels {
namespace {

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/panels_avx512.inl"
// clang-format on

constexpr int kTileRows = 16;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 32, 32, 64, 64};  // products 0 and 1, rows of x 2 and 3, weights 4 and 5
  uint8_t rows[16] = {16, 16, 16, 16, 8, 8};
};

// A panel as the tiles read it: signed bytes, a pair of blocks every `pair_bytes`; scales as they are.
struct TilePanel {
  const uint8_t* weights;
  int64_t pair_bytes;
  const uint8_t* scales;
  int64_t scale_pair_bytes;
};

// q - 8 of a panel of Q4_0 as signed bytes, 512 to a block.
static void unpack_q4(const uint8_t* panel, int64_t blocks, uint8_t* to) {
  constexpr PanelFormat format = kPanelFormats[static_cast<int>(PanelKind::kQ4_0)];
  const __m512i mask = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  for (int64_t b = 0; b < blocks; ++b, to += 512) {
    if (b % 2 == 0) panel += format.header_bytes;
    UNROLL for (int j = 0; j < 4; ++j) {
      const __m512i both = load_bytes(panel + j * 64);
      _mm512_store_si512(to + j * 64, _mm512_sub_epi8(_mm512_and_si512(both, mask), eight));
      _mm512_store_si512(to + (j + 4) * 64, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(both, 4), mask), eight));
    }
    panel += format.block_bytes;
  }
}

static TilePanel tile_panel(const PanelPart& part, int64_t panel) {
  const uint8_t* from = part.panels + panel * part.panel_bytes;
  if (part.kind == PanelKind::kQ8_0) return {from + 64, 64 + 2 * 512, from, 64 + 2 * 512};
  unpack_q4(from, part.blocks, part.scratch + kPanelScratch);
  return {part.scratch + kPanelScratch, 2 * 512, from, 64 + 2 * 256};
}

// The products of block b with 16 rows of x, to 16 x 16 integers. Tile numbers are part of the instructions.
#define MULTIPLY_TILE(product, rows, columns, x, stride, weights, to) \
  do {                                                                \
    _tile_zero(product);                                              \
    _tile_loadd(rows, x, stride);                                     \
    _tile_loadd(columns, weights, 64);                                \
    _tile_dpbssd(product, rows, columns);                             \
    _tile_stored(product, to, 64);                                    \
  } while (0)

static inline __attribute__((always_inline)) void add_products(const int32_t* products, __m512 dw, const float* d,
                                                               __m512 (&acc)[kTileRows]) {
  UNROLL for (int m = 0; m < kTileRows; ++m) {
    const __m512 scale = _mm512_mul_ps(dw, _mm512_set1_ps(d[m]));
    acc[m] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(load_bytes(products + m * 16)), acc[m]);
  }
}

static void multiply_16(const PanelPart& part, const TilePanel& from, int64_t panel, int64_t row) {
  constexpr int64_t kBlockBytes = kTileRows * kPanelBlock;
  const int8_t* q = part.x.q + row * part.blocks * kPanelBlock;
  const float* d = part.x.d + row * part.blocks;
  int32_t* products = reinterpret_cast<int32_t*>(part.scratch);  // two pairs of blocks
  __m512 acc[kTileRows];
  UNROLL for (int m = 0; m < kTileRows; ++m) acc[m] = _mm512_setzero_ps();
  MULTIPLY_TILE(0, 2, 4, q, kPanelBlock, from.weights, products);
  for (int64_t b = 0; b < part.blocks; b += 2) {
    const uint8_t* weights = from.weights + b / 2 * from.pair_bytes;
    const uint8_t* scales = from.scales + b / 2 * from.scale_pair_bytes;
    int32_t* second = products + 256;
    if (b + 1 < part.blocks) {
      MULTIPLY_TILE(1, 3, 5, q + (b + 1) * kBlockBytes, kPanelBlock, weights + 512, second);
    }
    add_products(products, load_f16(scales), d + b * kTileRows, acc);
    if (b + 2 < part.blocks) {
      MULTIPLY_TILE(0, 2, 4, q + (b + 2) * kBlockBytes, kPanelBlock, weights + from.pair_bytes, products);
    }
    if (b + 1 < part.blocks) add_products(second, load_f16(scales + 32), d + (b + 1) * kTileRows, acc);
  }
  UNROLL for (int m = 0; m < kTileRows; ++m) finish(part, panel, row + m, acc[m]);
}

// Rows that fill no tile of 16 are another, which vectors multiply.
static int64_t tile_rows(PanelKind kind, int64_t rows) {
  return has_large_blocks(kind) || rows < kTileRows ? vector_tile_rows(kind, rows) : kTileRows;
}

static void multiply(const PanelPart& part) {
  int64_t row = 0;
  if (part.x.tile_rows == kTileRows) {
    const TileConfig config;
    _tile_loadconfig(&config);
    const int64_t full = part.rows / kTileRows * kTileRows;
    for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
      const TilePanel from = tile_panel(part, panel);
      for (row = 0; row < full; row += kTileRows) multiply_16(part, from, panel, row);
    }
    _tile_release();
  }
  if (row < part.rows) multiply_by_vectors(part, row);
}

}  // namespace

extern const PanelTable kAmxPanels = {
    .tile_rows = tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = 512};

}  // namespace millrace::kernels

#endif
