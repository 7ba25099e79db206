// Products with panels by AMX int8 tiles where many rows share the weights, by AVX-512 VNNI where few do or a type has
// blocks of 256: the bits are the same. This file alone is compiled with those flags; see kernel_table.h for what it
// must not do. No include but the table and the intrinsics.
//
// A block of 32 k of a panel is the B tile of one TDPBSSD: 8 rows of 64 bytes; 16 rows of x with 32 bytes of each are
// the A tile. The products of a block go to memory, and are scaled and added from there while the tiles work on the
// next.
#if defined(__x86_64__)
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 warns of its own intrinsics
#endif
#include <immintrin.h>

#include "kernels/cpu/panel_table.h"

namespace millrace::kernels {
namespace {

constexpr int kTileRows = 16;

// As in panels_avx512.cc; but rows that fill no tile are one that vectors multiply, of up to 15.
constexpr int kMostRows = 12;
constexpr int kTallestTile = kTileRows - 1;
constexpr int kMostRowsLarge = 8;

// Each text builds on those before it.
// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/panel_terms.inl"
#include "kernels/cpu/panel_vec_avx512.inl"
#include "kernels/cpu/panel_weights.inl"
#include "kernels/cpu/panel_dot_vnni.inl"
#include "kernels/cpu/panel_tiles.inl"
// clang-format on

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 32, 64, 64};  // products 0 to 3, rows of x 4 and 5, weights 6 and 7
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 8};
};

constexpr int64_t kPrefetchBytes = 8192;  // beyond the page in work, at whose end the processor's own prefetcher stops

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
    prefetch<format.block_bytes>(panel, kPrefetchBytes);
    UNROLL for (int j = 0; j < 4; ++j) {
      const __m512i both = load_bytes(panel + j * 64);
      _mm512_store_si512(to + j * 64, _mm512_sub_epi8(_mm512_and_si512(both, mask), eight));
      _mm512_store_si512(to + (j + 4) * 64, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(both, 4), mask), eight));
    }
    panel += format.block_bytes;
  }
}

// Panel `panel`, with space for its integers at `scratch` where they have to be unpacked.
static TilePanel tile_panel(const PanelPart& part, int64_t panel, uint8_t* scratch) {
  const uint8_t* from = part.panels + panel * part.panel_bytes;
  if (part.kind == PanelKind::kQ8_0) return {from + 64, 64 + 2 * 512, from, 64 + 2 * 512};
  unpack_q4(from, part.blocks, scratch);
  return {scratch, 2 * 512, from, 64 + 2 * 256};
}

// The products of a block with 16 rows of x, to 16 x 16 integers. Tile numbers are part of the instructions.
#define MULTIPLY_TILE(product, rows, columns, x, weights, to) \
  do {                                                        \
    _tile_zero(product);                                      \
    _tile_loadd(rows, x, kPanelBlock);                        \
    _tile_loadd(columns, weights, 64);                        \
    _tile_dpbssd(product, rows, columns);                     \
    _tile_stored(product, to, 64);                            \
  } while (0)

constexpr int64_t kBlockBytes = kTileRows * kPanelBlock;  // of x
constexpr int64_t kProducts = kTileRows * 16;
// Blocks whose products are in memory or on the way there: 4 KiB, so that no two of them look alike to the store
// buffer.
constexpr int64_t kSlots = 4;

// What one panel and 16 rows work on.
struct TileRun {
  TilePanel from;
  const int8_t* q;
  const float* d;
  int64_t blocks;
  int32_t* products;
  bool first;  // of the rows that share the panel: it comes from memory
};

// Starts block b in slot b % 4, where there is one.
template <int slot>
static inline __attribute__((always_inline)) void multiply_block(const TileRun& run, int64_t b) {
  if (b >= run.blocks) return;
  const int8_t* x = run.q + b * kBlockBytes;
  const uint8_t* w = run.from.weights + b / 2 * run.from.pair_bytes + slot % 2 * 512;
  int32_t* to = run.products + slot * kProducts;
  if (run.first) prefetch<512>(w, kPrefetchBytes);
  if constexpr (slot == 0) MULTIPLY_TILE(0, 4, 6, x, w, to);
  if constexpr (slot == 1) MULTIPLY_TILE(1, 5, 7, x, w, to);
  if constexpr (slot == 2) MULTIPLY_TILE(2, 4, 6, x, w, to);
  if constexpr (slot == 3) MULTIPLY_TILE(3, 5, 7, x, w, to);
}

template <int slot>
static inline __attribute__((always_inline)) void add_block(const TileRun& run, int64_t b, __m512 (&acc)[kTileRows]) {
  if (b >= run.blocks) return;
  const __m512 dw = load_f16(run.from.scales + b / 2 * run.from.scale_pair_bytes + slot % 2 * 32);
  const float* d = run.d + b * kTileRows;
  const int32_t* products = run.products + slot * kProducts;
  UNROLL for (int m = 0; m < kTileRows; ++m) {
    const __m512 scale = _mm512_mul_ps(dw, _mm512_set1_ps(d[m]));
    acc[m] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(load_bytes(products + m * 16)), acc[m]);
  }
}

static void multiply_16(const PanelPart& part, const TilePanel& from, int64_t panel, int64_t row) {
  const TileRun run{from,        part.x.q + row * part.blocks * kPanelBlock, part.x.d + row * part.blocks,
                    part.blocks, reinterpret_cast<int32_t*>(part.scratch),   row == 0 && part.kind == PanelKind::kQ8_0};
  // By the time there is something to write, its lines are here.
  for (int64_t m = 0; m < kTileRows; ++m)
    __builtin_prefetch(part.y + (row + m) * part.y_stride + panel * kPanelRows, 1);
  __m512 acc[kTileRows];
  UNROLL for (int m = 0; m < kTileRows; ++m) acc[m] = _mm512_setzero_ps();
  multiply_block<0>(run, 0);
  multiply_block<1>(run, 1);
  multiply_block<2>(run, 2);
  for (int64_t b = 0; b < part.blocks; b += kSlots) {
    multiply_block<3>(run, b + 3);
    add_block<0>(run, b, acc);
    multiply_block<0>(run, b + 4);
    add_block<1>(run, b + 1, acc);
    multiply_block<1>(run, b + 5);
    add_block<2>(run, b + 2, acc);
    multiply_block<2>(run, b + 6);
    add_block<3>(run, b + 3, acc);
  }
  UNROLL for (int m = 0; m < kTileRows; ++m) finish(part, panel, 0, row + m, acc[m]);
}

// From so many rows on tiles are faster than vectors; those of Q4_0 have to be unpacked first.
static int64_t least_rows(PanelKind kind) { return kind == PanelKind::kQ4_0 ? 2 * kTileRows : kTileRows; }

// Rows that fill no tile of 16 are another, which vectors multiply.
static int64_t tile_rows(PanelKind kind, int64_t rows) {
  return has_large_blocks(kind) || rows < least_rows(kind) ? vector_tile_rows(kind, rows) : kTileRows;
}

constexpr int64_t kPanelsAtOnce = 4;  // stay in the level-2 cache while all rows pass

static void multiply(const PanelPart& part) {
  int64_t row = 0;
  if (part.x.tile_rows == kTileRows) {
    const TileConfig config;
    _tile_loadconfig(&config);
    for (int64_t first = part.panel_begin; first < part.panel_end; first += kPanelsAtOnce) {
      const int64_t left = part.panel_end - first;
      const int64_t count = left < kPanelsAtOnce ? left : kPanelsAtOnce;
      TilePanel panels[kPanelsAtOnce];
      for (int64_t i = 0; i < count; ++i) {
        panels[i] = tile_panel(part, first + i, part.scratch + kPanelScratch + i * part.blocks * 512);
      }
      for (row = 0; row + kTileRows <= part.rows; row += kTileRows) {
        for (int64_t i = 0; i < count; ++i) multiply_16(part, panels[i], first + i, row);
      }
    }
    _tile_release();
  }
  if (row < part.rows) multiply_by_vectors(part, row);
}

}  // namespace

extern const PanelTable kAmxPanels = {
    .tile_rows = tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = kPanelsAtOnce * 512};

}  // namespace millrace::kernels

#endif
