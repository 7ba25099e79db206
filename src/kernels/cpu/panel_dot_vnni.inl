// Products of bytes by VPDPBUSD: weights are the unsigned operand, and what their offset adds to a block's sum is taken
// off by starting from the row's term. A vector of weights is loaded once and meets four elements of every row.
// Included after panel_weights.inl.

constexpr bool kSignedQ8_0 = false;

// isum += the products of q[first .. last) with each row's elements. x points at the block in the first row.
template <PanelKind kind, int first, int last, int M, int H>
static inline __attribute__((always_inline)) void multiply_block(const uint8_t* block, const int8_t* x,
                                                                 Ints (&isum)[M][H]) {
  UNROLL for (int j = first; j < last; ++j) {
    Ints w[H];
    UNROLL for (int h = 0; h < H; ++h) w[h] = weights<kind>(block + h * 4 * kLanes, j);
    UNROLL for (int m = 0; m < M; ++m) {
      const int8_t* elements = x + m * kPanelBlock + 4 * j;
      if constexpr (H == 1) {
        isum[m][0] = dot(isum[m][0], w[0], elements);
      } else {
        const Ints xs = four(elements);
        UNROLL for (int h = 0; h < H; ++h) isum[m][h] = dot(isum[m][h], w[h], xs);
      }
    }
  }
}
