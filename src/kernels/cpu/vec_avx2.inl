// The 8-lane vector of the avx2 kernels. Included once, by kernels_avx2.cc, inside an unnamed namespace.

struct V8 {
  __m256 v;
};

static inline V8 zero() { return {_mm256_setzero_ps()}; }
static inline V8 set1(float x) { return {_mm256_set1_ps(x)}; }
static inline V8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
static inline void store(float* p, V8 a) { _mm256_storeu_ps(p, a.v); }
static inline V8 add(V8 a, V8 b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline V8 sub(V8 a, V8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline V8 mul(V8 a, V8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline V8 div(V8 a, V8 b) { return {_mm256_div_ps(a.v, b.v)}; }
// a * b + c, one rounding.
static inline V8 fma(V8 a, V8 b, V8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN, as the instruction does.
static inline V8 max(V8 a, V8 b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline V8 min(V8 a, V8 b) { return {_mm256_min_ps(a.v, b.v)}; }
static inline V8 round_nearest(V8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n for whole n in [-126, 127].
static inline V8 power_of_two(V8 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}
// a where not (x < limit), so also where x is NaN; else +0.
static inline V8 zero_where_less(V8 a, V8 x, V8 limit) {
  return {_mm256_and_ps(a.v, _mm256_cmp_ps(x.v, limit.v, _CMP_NLT_UQ))};
}
static inline bool any_nan(V8 a) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)) != 0; }
static inline bool any_equal(V8 a, V8 b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)) != 0; }

// The first n lanes, 0 < n < 8; the others are +0 and their memory is not touched.
static inline __m256i lane_mask(int64_t n) {
  static const int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + 8 - n));
}
static inline V8 load_partial(const float* p, int64_t n) { return {_mm256_maskload_ps(p, lane_mask(n))}; }
static inline void store_partial(float* p, V8 a, int64_t n) { _mm256_maskstore_ps(p, lane_mask(n), a.v); }

template <WeightKind kind>
static inline V8 load_weights(const char* p) {
  if constexpr (kind == WeightKind::kF32) {
    return {_mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  } else {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (kind == WeightKind::kF16) return {_mm256_cvtph_ps(words)};
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16))};
  }
}

static inline V8 load_int8(const char* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}

// ((0+1) + (2+3)) + ((4+5) + (6+7)) of each of four vectors.
static inline void sum4(V8 a, V8 b, V8 c, V8 d, float* out) {
  const __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(a.v, b.v), _mm256_hadd_ps(c.v, d.v));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}
static inline float sum(V8 a) {
  const __m256 pairs = _mm256_hadd_ps(a.v, a.v);
  const __m256 quads = _mm256_hadd_ps(pairs, pairs);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}
