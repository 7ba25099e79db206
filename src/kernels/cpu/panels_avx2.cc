// Products with panels for AVX2 + FMA + F16C. This file alone is compiled with those flags; see kernel_table.h for what
// it must not do. No include but the table and the intrinsics.
//
// VPMADDUBSW multiplies unsigned by signed bytes and adds pairs into 16 bits, saturating. Q8_0 gives it |w| and x with
// w's sign: 2 * 128 * 127 fits. The others are unsigned as they are, and their pairs can be added for a while before
// they are widened: 8 pairs of Q4 (8 * 2 * 15 * 127 = 30480), 4 of Q5 (31496), 2 of Q6 (32004).
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/panel_table.h"

namespace millrace::kernels {
namespace {

constexpr int kMostRows = 4;  // of a tile: their sums over both halves of a panel are half of the registers
constexpr int kTallestTile = kMostRows;
constexpr int kMostRowsLarge = 8;  // one half at a time; more rows share what it takes to unpack the weights
constexpr bool kSignedQ8_0 = true;

// clang-format off
#include "kernels/cpu/unroll.inl"
#include "kernels/cpu/panel_terms.inl"
#include "kernels/cpu/panel_vec_avx2.inl"
#include "kernels/cpu/panel_weights.inl"
// clang-format on

template <int first, int last, int M, int H>
static inline __attribute__((always_inline)) void multiply_signed(const uint8_t* block, const int8_t* x,
                                                                  Ints (&isum)[M][H]) {
  const Ints ones = _mm256_set1_epi16(1);
  UNROLL for (int j = first; j < last; ++j) {
    Ints w[H], most[H];
    UNROLL for (int h = 0; h < H; ++h) {
      w[h] = load_bytes(block + j * 64 + h * 4 * kLanes);
      most[h] = _mm256_abs_epi8(w[h]);
    }
    UNROLL for (int m = 0; m < M; ++m) {
      const Ints xs = four(x + m * kPanelBlock + 4 * j);
      UNROLL for (int h = 0; h < H; ++h) {
        const Ints pairs = _mm256_maddubs_epi16(most[h], _mm256_sign_epi8(xs, w[h]));
        isum[m][h] = _mm256_add_epi32(isum[m][h], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
}

template <PanelKind kind, int first, int last, int M, int H>
static inline __attribute__((always_inline)) void multiply_unsigned(const uint8_t* block, const int8_t* x,
                                                                    Ints (&isum)[M][H]) {
  constexpr int kPairs = kind == PanelKind::kQ6_K ? 2 : kind == PanelKind::kQ5_K ? 4 : 8;
  const Ints ones = _mm256_set1_epi16(1);
  UNROLL for (int begin = first; begin < last; begin += kPairs) {
    Ints pairs[M][H];
    UNROLL for (int j = begin; j < begin + kPairs; ++j) {
      Ints w[H];
      UNROLL for (int h = 0; h < H; ++h) w[h] = weights<kind>(block + h * 4 * kLanes, j);
      UNROLL for (int m = 0; m < M; ++m) {
        const Ints xs = four(x + m * kPanelBlock + 4 * j);
        UNROLL for (int h = 0; h < H; ++h) {
          const Ints product = _mm256_maddubs_epi16(w[h], xs);
          pairs[m][h] = j == begin ? product : _mm256_add_epi16(pairs[m][h], product);
        }
      }
    }
    UNROLL for (int m = 0; m < M; ++m) {
      UNROLL for (int h = 0; h < H; ++h) {
        isum[m][h] = _mm256_add_epi32(isum[m][h], _mm256_madd_epi16(pairs[m][h], ones));
      }
    }
  }
}

// isum += the products of q[first .. last) with each row's elements. x points at the block in the first row. Vectors
// together, as each element of x is fetched once for them.
template <PanelKind kind, int first, int last, int M, int H>
static inline __attribute__((always_inline)) void multiply_block(const uint8_t* block, const int8_t* x,
                                                                 Ints (&isum)[M][H]) {
  if constexpr (kind == PanelKind::kQ8_0) {
    multiply_signed<first, last>(block, x, isum);
  } else {
    multiply_unsigned<kind, first, last>(block, x, isum);
  }
}

#include "kernels/cpu/panel_tiles.inl"

static void multiply(const PanelPart& part) { multiply_by_vectors(part, 0); }

}  // namespace

extern const PanelTable kAvx2Panels = {
    .tile_rows = vector_tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = 0};

}  // namespace millrace::kernels

#endif
