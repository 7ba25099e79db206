// Products with panels by VPDPBUSD of 256 bits, after a dot() in the encoding that the including file is for.

constexpr int kMostRows =
    5;  // with both halves of a panel 10 integer sums in 16 registers; the float sums are in memory
constexpr int kTallestTile = kMostRows;
constexpr int kMostRowsLarge = 4;

static inline Ints dot(Ints sum, Ints w, const int8_t* x) { return dot(sum, w, four(x)); }

// clang-format off
#include "kernels/cpu/panel_weights.inl"
#include "kernels/cpu/panel_dot_vnni.inl"
#include "kernels/cpu/panel_tiles.inl"
// clang-format on

static void multiply(const PanelPart& part) { multiply_by_vectors(part, 0); }
