// What a kind wants from the sums of the two halves of a quantized block of x (PanelActivations::terms). Included
// before panel_vec_<isa>.inl.

static inline void write_terms(PanelKind kind, int32_t low, int32_t high, float d, int64_t rows, int32_t* terms) {
  if (kind == PanelKind::kQ6_K) {
    terms[0] = -32 * low;
    terms[rows] = -32 * high;
  } else if (kind == PanelKind::kQ8_0 || kind == PanelKind::kQ4_0) {
    terms[0] = (kind == PanelKind::kQ8_0 ? -128 : -8) * (low + high);
  } else {
    const float sum = d * static_cast<float>(low + high);
    __builtin_memcpy(terms, &sum, 4);
  }
}
