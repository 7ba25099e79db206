// A panel's weights as unsigned bytes. Included after panel_vec_<isa>.inl.

constexpr int kVectors = static_cast<int>(kPanelRows / kLanes);  // of a panel's 16 columns

// One vector of the weights q[j] of a block, which points at that vector's columns: of Q8_0, q + 128.
template <PanelKind kind>
static inline __attribute__((always_inline)) Ints weights(const uint8_t* block, int j) {
  if constexpr (kind == PanelKind::kQ8_0) {
    return xor_bits(load_bytes(block + j * 64), set1_bytes(-128));
  } else {
    Ints both = load_bytes(block + (j % 4) * 64);
    if (j >= 4) both = words_right(both, 4);
    Ints q = and_bits(both, set1_bytes(15));
    if constexpr (kind == PanelKind::kQ5_K) {
      const Ints plane = load_bytes(block + 256);
      const Ints bit = j < 4 ? words_left(plane, 4 - j) : words_right(plane, j - 4);
      q = or_bits(q, and_bits(bit, set1_bytes(16)));
    }
    if constexpr (kind == PanelKind::kQ6_K) {
      const Ints plane = load_bytes(block + 256 + (j / 4) * 64);
      const int shift = 2 * (j % 4);
      const Ints bits = shift <= 4 ? words_left(plane, 4 - shift) : words_right(plane, shift - 4);
      q = or_bits(q, and_bits(bits, set1_bytes(48)));
    }
    return q;
  }
}
