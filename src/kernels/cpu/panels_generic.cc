// Products with panels in plain C++: any processor. Multiplications and additions round one by one here.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/panel_table.h"
#include "kernels/half.h"

namespace millrace::kernels {
namespace {

// The integers of one block, [k][row], without the offsets 8 and 32.
struct Integers {
  int16_t w[kPanelBlock][kPanelRows];
};

void read_integers(PanelKind kind, const uint8_t* block, Integers& to) {
  for (int64_t k = 0; k < kPanelBlock; ++k) {
    const int64_t j = k / 4;
    for (int64_t r = 0; r < kPanelRows; ++r) {
      const int64_t byte = r * 4 + k % 4;
      if (kind == PanelKind::kQ8_0) {
        to.w[k][r] = static_cast<int8_t>(block[j * 64 + byte]);
        continue;
      }
      int q = (block[j % 4 * 64 + byte] >> (j / 4 * 4)) & 15;
      if (kind == PanelKind::kQ5_K) q |= ((block[256 + byte] >> j) & 1) << 4;
      if (kind == PanelKind::kQ6_K) q |= ((block[256 + j / 4 * 64 + byte] >> (2 * (j % 4))) & 3) << 4;
      if (kind == PanelKind::kQ4_0) q -= 8;
      if (kind == PanelKind::kQ6_K) q -= 32;
      to.w[k][r] = static_cast<int16_t>(q);
    }
  }
}

void multiply_integers(const Integers& from, int64_t begin, int64_t end, const int8_t* x, int32_t* sums) {
  for (int64_t r = 0; r < kPanelRows; ++r) sums[r] = 0;
  for (int64_t k = begin; k < end; ++k) {
    for (int64_t r = 0; r < kPanelRows; ++r) sums[r] += int32_t{from.w[k][r]} * int32_t{x[k]};
  }
}

void read_f16(const uint8_t* from, float* to) {
  for (int64_t r = 0; r < kPanelRows; ++r) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * r, 2);
    to[r] = f16_to_f32(bits);
  }
}

// One row of x in one panel.
struct Sums {
  float acc[kPanelRows], a[kPanelRows], m[kPanelRows];
};

struct RowBlock {
  const int8_t* q;
  float d;
  float dsum;  // of Q4_K and Q5_K
};

void add_small(const Integers& w, const float* dw, const RowBlock& x, Sums& s) {
  int32_t isum[kPanelRows];
  multiply_integers(w, 0, kPanelBlock, x.q, isum);
  for (int64_t r = 0; r < kPanelRows; ++r) s.acc[r] += dw[r] * x.d * static_cast<float>(isum[r]);
}

// `b` is the block's place in its group.
void add_large(PanelKind kind, const Integers& w, const uint8_t* header, int64_t b, const RowBlock& x, Sums& s) {
  int32_t low[kPanelRows], high[kPanelRows];
  if (kind == PanelKind::kQ6_K) {
    const int8_t* scales = reinterpret_cast<const int8_t*>(header + kPanelScales + b * 32);
    multiply_integers(w, 0, 16, x.q, low);
    multiply_integers(w, 16, 32, x.q, high);
    for (int64_t r = 0; r < kPanelRows; ++r) {
      s.a[r] += static_cast<float>(scales[r] * low[r] + scales[16 + r] * high[r]) * x.d;
    }
    return;
  }
  multiply_integers(w, 0, kPanelBlock, x.q, low);
  for (int64_t r = 0; r < kPanelRows; ++r) {
    s.a[r] += static_cast<float>(header[kPanelScales + b * 16 + r] * low[r]) * x.d;
    s.m[r] += static_cast<float>(header[kPanelMins + b * 16 + r]) * x.dsum;
  }
}

void end_group(PanelKind kind, const uint8_t* header, Sums& s) {
  float d[kPanelRows], dmin[kPanelRows];
  read_f16(header, d);
  read_f16(header + 32, dmin);
  for (int64_t r = 0; r < kPanelRows; ++r) {
    s.acc[r] += d[r] * s.a[r];
    if (kind != PanelKind::kQ6_K) s.acc[r] -= dmin[r] * s.m[r];
    s.a[r] = s.m[r] = 0;
  }
}

void finish(const PanelPart& part, int64_t panel, int64_t row, const float* acc) {
  const int64_t first = panel * kPanelRows;
  float* y = part.y + row * part.y_stride;
  for (int64_t n = first; n < std::min(part.columns, first + kPanelRows); ++n) {
    float value = acc[n - first];
    if (part.bias != nullptr) value += part.bias[n];
    if (part.accumulate) value += y[n];
    y[n] = value;
  }
}

constexpr int64_t kTileRows = 16;  // share a block's unpacked integers

// `tile` of x holds rows [row, row + rows).
void multiply_tile(const PanelPart& part, int64_t panel, int64_t row, int64_t rows) {
  const PanelFormat& format = kPanelFormats[static_cast<int>(part.kind)];
  const uint8_t* from = part.panels + panel * part.panel_bytes;
  const int8_t* q = part.x.q + row * part.blocks * kPanelBlock;
  const float* d = part.x.d + row * part.blocks;
  const int32_t* terms = part.x.terms + row * part.blocks * format.terms;
  Sums sums[kTileRows] = {};
  Integers integers;
  float dw[kPanelRows];
  for (int64_t first = 0; first < part.blocks; first += format.blocks) {
    const uint8_t* header = from;
    from += format.header_bytes;
    const int64_t count = std::min(format.blocks, part.blocks - first);
    for (int64_t b = 0; b < count; ++b, from += format.block_bytes) {
      read_integers(part.kind, from, integers);
      if (format.blocks == 2) read_f16(header + b * 32, dw);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = (first + b) * rows + i;
        RowBlock x{q + at * kPanelBlock, d[at], 0};
        if (format.terms == 1) std::memcpy(&x.dsum, terms + at, 4);
        if (format.blocks == 2) {
          add_small(integers, dw, x, sums[i]);
        } else {
          add_large(part.kind, integers, header, b, x, sums[i]);
        }
      }
    }
    for (int64_t i = 0; format.blocks != 2 && i < rows; ++i) end_group(part.kind, header, sums[i]);
  }
  for (int64_t i = 0; i < rows; ++i) finish(part, panel, row + i, sums[i].acc);
}

void multiply(const PanelPart& part) {
  for (int64_t row = 0; row < part.rows; row += part.x.tile_rows) {
    for (int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
      multiply_tile(part, panel, row, std::min(part.x.tile_rows, part.rows - row));
    }
  }
}

int64_t tile_rows(PanelKind, int64_t rows) { return std::clamp<int64_t>(rows, 1, kTileRows); }

void write_terms(PanelKind kind, const int8_t* q, float d, int64_t rows, int32_t* terms) {
  int32_t low = 0, high = 0;
  for (int64_t i = 0; i < 16; ++i) {
    low += q[i];
    high += q[16 + i];
  }
  if (kind == PanelKind::kQ6_K) {
    terms[0] = -32 * low;
    terms[rows] = -32 * high;
  } else if (kind == PanelKind::kQ8_0 || kind == PanelKind::kQ4_0) {
    terms[0] = (kind == PanelKind::kQ8_0 ? -128 : -8) * (low + high);
  } else {
    const float sum = d * static_cast<float>(low + high);
    std::memcpy(terms, &sum, 4);
  }
}

void quantize(PanelKind kind, const float* x, int64_t blocks, int64_t rows, int8_t* q, float* d, int32_t* terms) {
  const int64_t terms_step = kPanelFormats[static_cast<int>(kind)].terms * rows;
  for (int64_t b = 0; b < blocks; ++b, x += kPanelBlock, q += rows * kPanelBlock, d += rows, terms += terms_step) {
    uint32_t most_bits = 0;
    for (int64_t i = 0; i < kPanelBlock; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, 4);
      most_bits = std::max(most_bits, bits & 0x7fffffffu);
    }
    float most;
    std::memcpy(&most, &most_bits, 4);
    const bool finite = most_bits < 0x7f800000u;
    *d = most / 127.0f;
    const bool some = finite && *d >= 0x1p-126f;
    const float inverse = some ? 127.0f / most : 0.0f;
    // Adding 1.5 * 2^23 leaves no fraction bits; ties go to even.
    for (int64_t i = 0; i < kPanelBlock; ++i) {
      q[i] = some ? static_cast<int8_t>((x[i] * inverse + 12582912.0f) - 12582912.0f) : int8_t{0};
    }
    if (!finite) *d = __builtin_nanf("");
    if (finite && !some) *d = 0;
    write_terms(kind, q, *d, rows, terms);
  }
}

}  // namespace

extern const PanelTable kGenericPanels = {
    .tile_rows = tile_rows, .quantize = quantize, .multiply = multiply, .scratch_bytes_per_block = 0};

}  // namespace millrace::kernels
