// The vectors of linear for AVX-512: 16 lanes, and words that hold a pair of bf16.

struct LV {
  __m512 v;
};
typedef __m512i LPairs;
static constexpr int kLanes = 16;
static constexpr int kVectors = 2;   // of columns in a tile of many rows: 12 x 2 sums, 2 of W; x comes from memory
static constexpr int kRowTile = 12;
static constexpr int kFewRows = 24;  // beyond, widening weights once for all tiles pays
static constexpr int kFewTile = 12;
static constexpr int kWideRows = 0;  // two vectors are a whole panel

static inline LV lv_zero() { return {_mm512_setzero_ps()}; }
static inline LV lv_set1(float x) { return {_mm512_set1_ps(x)}; }
static inline LV lv_load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void lv_store(float* p, LV a) { _mm512_storeu_ps(p, a.v); }
static inline LV lv_add(LV a, LV b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline LV lv_fma(LV a, LV b, LV c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline LV lv_load_f16(const char* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline LPairs lv_load_pairs(const char* p) { return _mm512_loadu_si512(p); }
static inline LV lv_first(LPairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))}; }
static inline LV lv_second(LPairs a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
