// Panels: the form in which the CPU implementations multiply by quantized weights, and the border between the driver
// (panel_linear.cc) and the per-ISA kernels panels_<isa>.cc. As in kernel_table.h: plain structs, constants and
// function pointers, nothing inline, because the per-ISA files must not share code.
//
// A panel holds kPanelRows rows of a matrix; rows past its end are zeros. Along k it is a run of groups. A group is a
// header with its scales, then its blocks of 32 k, each the same integers that a file holds:
//   Q8_0  header 64 bytes: f16 d[2][16]                 2 blocks of 512: int8 q[8][16][4]
//   Q4_0  header 64 bytes: f16 d[2][16]                 2 blocks of 256: halves[4][16][4]
//   Q4_K  header 320: f16 d[16], dmin[16]; uint8 scale[8][16], min[8][16]       8 blocks of 256: halves[4][16][4]
//   Q5_K  the same header                               8 blocks of 320: halves[4][16][4], fifth bits [16][4]
//   Q6_K  header 320: f16 d[16], 32 unused; int8 scale[16][16]      8 blocks of 384: halves[4][16][4], upper bits
//         [2][16][4]
// q[j][r][c] is row r, element 4 * j + c of the block: one vector of 64 bytes meets four elements of x, repeated 16
// times, as VPDPBUSD and an AMX tile want them. Byte v of the halves holds q[v] below and q[v + 4] above. Bit j of a
// fifth bits' byte belongs to q[j]; bits 2 j and 2 j + 1 of upper bits [g] to q[4 g + j]. Where the columns of Q8_0 or
// Q4_0 end with an odd block, so does the last group.
//
// ARITHMETIC, the same in every ISA but for fused or separate roundings. Rows of x are quantized in blocks of 32:
//   most = max |x|;  dx = most / 127;  q = x * (127 / most) rounded to nearest, ties to even
//   dx < 2^-126: dx = 0, q = 0;  a NaN or an infinity in the block: dx = NaN, q = 0
// Sums of products of integers are exact. With isum = sum of q_w * q_x and xsum = sum of q_x over a block, per block
// with ascending k, from acc = +0:
//   Q8_0, Q4_0   acc = fma(dw * dx, isum, acc)
//   Q4_K, Q5_K   from a = m = +0 in every 256:  a = fma(scale * isum, dx, a);  m = fma(min, dx * xsum, m)
//                then acc = fma(d, a, acc);  acc = fma(-dmin, m, acc)
//   Q6_K         from a = +0 in every 256:  a = fma(scale0 * isum0 + scale1 * isum1, dx, a)    (halves of 16)
//                then acc = fma(d, a, acc)
// (scale * isum is below 2^24: exact.) At the end + bias, then + the old y where accumulating.
//
// Thread safety: kernels write only what their arguments name; all may run concurrently.
#pragma once

#include <cstdint>

namespace millrace::kernels {

enum class PanelKind : int { kQ8_0, kQ4_0, kQ4_K, kQ5_K, kQ6_K };

constexpr int64_t kPanelRows = 16;
constexpr int64_t kPanelBlock = 32;  // elements of k

// Of one group.
struct PanelFormat {
  int64_t header_bytes;
  int64_t block_bytes;
  int64_t blocks;
  int64_t terms;  // per block of a quantized row of x
};
constexpr PanelFormat kPanelFormats[] = {
    {64, 512, 2, 1}, {64, 256, 2, 1}, {320, 256, 8, 1}, {320, 320, 8, 1}, {320, 384, 8, 2}};
constexpr int64_t kPanelScales = 64;  // where the integer scales begin in a header of 320 bytes
constexpr int64_t kPanelMins = 192;

// Rows of x as the kernels read them, cut into tiles of `tile_rows` rows; the last tile has what is left. A tile of M
// rows begins where the tiles before it end and holds
//   q      [block][M][32] int8
//   d      [block][M] f32
//   terms  [block][terms][M]: what the kernels add for the offset of their unsigned weights. Q8_0 -128 * xsum; Q4_0 -8
//   *
//          xsum; Q6_K, per half of a block, -32 * xsum; all int32. Q4_K and Q5_K: dx * xsum as f32
struct PanelActivations {
  int8_t* q;
  float* d;
  int32_t* terms;
  int64_t tile_rows;
};

// All `rows` of y x the weight rows of panels [panel_begin, panel_end).
struct PanelPart {
  PanelKind kind;
  const uint8_t* panels;  // 64-byte aligned
  int64_t panel_bytes;
  int64_t blocks;   // of 32, along k
  int64_t columns;  // of y: rows of the matrix
  PanelActivations x;
  const float* bias;  // [columns] or null
  float* y;
  int64_t y_stride;
  bool accumulate;
  int64_t rows, panel_begin, panel_end;
  int64_t prefetch_bytes;  // how far the first rows ask for weights: prefetch_distance.h
  uint8_t* scratch;        // scratch_bytes(blocks) of the table, 64-byte aligned
};

struct PanelTable {
  // How many rows a tile of so many in all is to have.
  int64_t (*tile_rows)(PanelKind kind, int64_t rows);
  // One row of `blocks` blocks into its place in a tile of `rows`.
  void (*quantize)(PanelKind kind, const float* x, int64_t blocks, int64_t rows, int8_t* q, float* d, int32_t* terms);
  void (*multiply)(const PanelPart&);
  // Of PanelPart.scratch for each block along k, beyond a fixed kPanelScratch; 0: none.
  int64_t scratch_bytes_per_block;
};
constexpr int64_t kPanelScratch = 8192;

extern const PanelTable kGenericPanels;
#if defined(__x86_64__)
extern const PanelTable kAvx2Panels;
extern const PanelTable kAvxVnniPanels;  // needs AVX-VNNI as well
extern const PanelTable kAvx512Panels;   // needs AVX-512 VNNI as well
extern const PanelTable kAmxPanels;      // and AMX int8
#endif

}  // namespace millrace::kernels
