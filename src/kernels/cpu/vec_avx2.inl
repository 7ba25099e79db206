// The 8-lane vector of the avx2 kernels. Included once in each of the files that use it, inside an unnamed namespace.

struct V8 {
  __m256 v;
};
using V = V8;
constexpr int64_t kWidth = 8;
// Query rows of an attention tile. 16 registers: 12 sums, two vectors of keys or values, one of a query.
constexpr int kTile = 6;
// Least of the query rows that each take a lane (attention_lanes.inl): fewer leave too many lanes empty.
constexpr int64_t kLaneQueries = 64;
// There: vectors of queries that meet so many keys at once.
constexpr int kGroupVectors = 3;
constexpr int kGroupKeys = 4;
// Most query rows that read keys and values from the pages themselves.
constexpr int kDirectQueries = 6;

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
// 2^n, n whole in [-126, 127], from the sum n + 1.5 * 2^23: the low bits of it are n.
static inline V8 power_of_two(V8 shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000)))};
}
// a where not (x < limit), so also where x is NaN; else +0.
static inline V8 zero_where_less(V8 a, V8 x, V8 limit) {
  return {_mm256_and_ps(a.v, _mm256_cmp_ps(x.v, limit.v, _CMP_NLT_UQ))};
}

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
// Of lanes that are no NaN.
static inline float largest(V8 a) {
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

// ---- eight rows at a time, four bytes of each to a lane -------------------------------------------------------------

static inline __m256 half_rows(const char* const* rows, int64_t offset) {
  const auto half = [&](int i) { return _mm_loadu_ps(reinterpret_cast<const float*>(rows[i] + offset)); };
  return _mm256_insertf128_ps(_mm256_castps128_ps256(half(0)), half(4), 1);
}

// units[u], lane l = the bytes offset + 4 u .. + 3 of rows[l].
static inline void transpose_rows(const char* const* rows, int64_t offset, V8 (&units)[4]) {
  const __m256 a = half_rows(rows, offset);
  const __m256 b = half_rows(rows + 1, offset);
  const __m256 c = half_rows(rows + 2, offset);
  const __m256 d = half_rows(rows + 3, offset);
  const __m256d low_ab = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
  const __m256d low_cd = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
  const __m256d high_ab = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
  const __m256d high_cd = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
  units[0].v = _mm256_castpd_ps(_mm256_unpacklo_pd(low_ab, low_cd));
  units[1].v = _mm256_castpd_ps(_mm256_unpackhi_pd(low_ab, low_cd));
  units[2].v = _mm256_castpd_ps(_mm256_unpacklo_pd(high_ab, high_cd));
  units[3].v = _mm256_castpd_ps(_mm256_unpackhi_pd(high_ab, high_cd));
}

// Element `index` of the 1, 2 or 4 that lie in each lane, widened exactly. (f16: see widen_f16 in vec_generic.inl.)
template <KvKind kind, int index>
static inline V8 widen_unit(V8 unit) {
  const __m256i bits = _mm256_castps_si256(unit.v);
  if constexpr (kind == KvKind::kF32) return unit;
  if constexpr (kind == KvKind::kI8) {
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bits, 24 - 8 * index), 24))};
  }
  if constexpr (kind == KvKind::kBF16 && index == 0) return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
  if constexpr (kind == KvKind::kBF16) {
    return {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  const __m256i top = index == 0 ? _mm256_slli_epi32(bits, 16) : bits;
  const __m256i placed = _mm256_and_si256(_mm256_srai_epi32(top, 3), _mm256_set1_epi32(static_cast<int>(0x8fffe000u)));
  const __m256i value = _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(placed), _mm256_set1_ps(0x1p112f)));
  const __m256i largest_exponent = _mm256_set1_epi32(0x7c000000);
  const __m256i special = _mm256_cmpeq_epi32(_mm256_and_si256(top, largest_exponent), largest_exponent);
  return {_mm256_castsi256_ps(_mm256_or_si256(value, _mm256_and_si256(special, _mm256_set1_epi32(0x7f800000))))};
}
