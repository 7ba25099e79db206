// A pair of x for linear_rounded.inl where the processor has no product of bf16 pairs: rounded numbers as f32.

struct XPair {
  float first, second;
};

static inline uint32_t rounded_bits(float x);
static inline float rounded(float x) {
  const uint32_t bits = rounded_bits(x) << 16;
  float value = 0;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
static inline XPair make_pair(float first, float second) { return {rounded(first), rounded(second)}; }
static inline LV lv_dot(const XPair& x, LPairs w, LV sum) {
  return lv_fma(lv_set1(x.first), lv_first(w), lv_fma(lv_set1(x.second), lv_second(w), sum));
}
