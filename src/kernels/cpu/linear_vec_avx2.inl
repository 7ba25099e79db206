// The vectors of linear for AVX2: those of vec_avx2.inl, and words that hold a pair of bf16.

typedef V8 LV;
typedef __m256i LPairs;
static constexpr int kLanes = 8;
static constexpr int kVectors = 2;   // of columns in a tile of many rows: 6 x 2 sums, 2 of W, 1 of x
static constexpr int kRowTile = 6;
static constexpr int kFewRows = 12;
static constexpr int kFewTile = 5;   // 5 x 2 sums, 2 of W, a mask and one of x: with 6 the compiler keeps sums in memory
static constexpr int kWideRows = 3;  // up to here a whole panel of 4 vectors side by side

static inline LV lv_zero() { return zero(); }
static inline LV lv_set1(float x) { return set1(x); }
static inline LV lv_load(const float* p) { return load(p); }
static inline void lv_store(float* p, LV a) { store(p, a); }
static inline LV lv_add(LV a, LV b) { return add(a, b); }
static inline LV lv_fma(LV a, LV b, LV c) { return fma(a, b, c); }
static inline LV lv_load_f16(const char* p) { return load_weights<WeightKind::kF16>(p); }
static inline LPairs lv_load_pairs(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline LV lv_first(LPairs a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16))}; }
static inline LV lv_second(LPairs a) {
  return {_mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
