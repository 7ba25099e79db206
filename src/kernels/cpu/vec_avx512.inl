// The 16-lane vector of the avx512 kernels. Included once, by kernels_avx512.cc, in a namespace of its own inside the
// unnamed one: texts that follow it there are 16 lanes wide, those before it keep the 8 lanes of vec_avx2.inl.

struct V {
  __m512 v;
};
constexpr int64_t kWidth = 16;
// Query rows of an attention tile. 32 registers: 24 sums, two vectors of keys or values, one of a query.
constexpr int kTile = 12;
// Least of the query rows that each take a lane (attention_lanes.inl): fewer leave too many lanes empty.
constexpr int64_t kLaneQueries = 64;
// There: vectors of queries that meet so many keys at once.
constexpr int kGroupVectors = 3;
constexpr int kGroupKeys = 8;
// Most query rows that read keys and values from the pages themselves.
constexpr int kDirectQueries = 8;

static inline V zero() { return {_mm512_setzero_ps()}; }
static inline V set1(float x) { return {_mm512_set1_ps(x)}; }
static inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
static inline V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, one rounding.
static inline V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN, as the instruction does.
static inline V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
// 2^n, n whole in [-126, 127], from the sum n + 1.5 * 2^23: the low bits of it are n.
static inline V power_of_two(V shifted) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f800000)))};
}
// a where not (x < limit), so also where x is NaN; else +0.
static inline V zero_where_less(V a, V x, V limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), a.v)};
}

// The first n lanes, 0 < n < 16; the others are +0 and their memory is not touched.
static inline __mmask16 lane_mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
static inline V load_partial(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(lane_mask(n), p)}; }
static inline void store_partial(float* p, V a, int64_t n) { _mm512_mask_storeu_ps(p, lane_mask(n), a.v); }

template <WeightKind kind>
static inline V load_weights(const char* p) {
  if constexpr (kind == WeightKind::kF32) {
    return {_mm512_loadu_ps(p)};
  } else {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kind == WeightKind::kF16) return {_mm512_cvtph_ps(words)};
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16))};
  }
}

static inline V load_int8(const char* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// Lane l and lane l + 8 first; then ((0+1) + (2+3)) + ((4+5) + (6+7)).
static inline float sum(V a) {
  const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m256 pairs = _mm256_hadd_ps(halves, halves);
  const __m256 quads = _mm256_hadd_ps(pairs, pairs);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}
// Of lanes that are no NaN.
static inline float largest(V a) { return _mm512_reduce_max_ps(a.v); }

// ---- sixteen rows at a time, four bytes of each to a lane -----------------------------------------------------------

static inline __m512 quarter_rows(const char* const* rows, int64_t offset) {
  const auto quarter = [&](int i) { return _mm_loadu_ps(reinterpret_cast<const float*>(rows[i] + offset)); };
  __m512 a = _mm512_castps128_ps512(quarter(0));
  a = _mm512_insertf32x4(a, quarter(4), 1);
  a = _mm512_insertf32x4(a, quarter(8), 2);
  return _mm512_insertf32x4(a, quarter(12), 3);
}

// units[u], lane l = the bytes offset + 4 u .. + 3 of rows[l].
static inline void transpose_rows(const char* const* rows, int64_t offset, V (&units)[4]) {
  const __m512 a = quarter_rows(rows, offset);
  const __m512 b = quarter_rows(rows + 1, offset);
  const __m512 c = quarter_rows(rows + 2, offset);
  const __m512 d = quarter_rows(rows + 3, offset);
  const __m512d low_ab = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
  const __m512d low_cd = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
  const __m512d high_ab = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
  const __m512d high_cd = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
  units[0].v = _mm512_castpd_ps(_mm512_unpacklo_pd(low_ab, low_cd));
  units[1].v = _mm512_castpd_ps(_mm512_unpackhi_pd(low_ab, low_cd));
  units[2].v = _mm512_castpd_ps(_mm512_unpacklo_pd(high_ab, high_cd));
  units[3].v = _mm512_castpd_ps(_mm512_unpackhi_pd(high_ab, high_cd));
}

// Element `index` of the 1, 2 or 4 that lie in each lane, widened exactly. (f16: see widen_f16 in vec_generic.inl.)
template <KvKind kind, int index>
static inline V widen_unit(V unit) {
  const __m512i bits = _mm512_castps_si512(unit.v);
  if constexpr (kind == KvKind::kF32) return unit;
  if constexpr (kind == KvKind::kI8) {
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(bits, 24 - 8 * index), 24))};
  }
  if constexpr (kind == KvKind::kBF16 && index == 0) return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
  if constexpr (kind == KvKind::kBF16) {
    return {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  const __m512i top = index == 0 ? _mm512_slli_epi32(bits, 16) : bits;
  const __m512i placed = _mm512_and_si512(_mm512_srai_epi32(top, 3), _mm512_set1_epi32(static_cast<int>(0x8fffe000u)));
  const __m512i value = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(placed), _mm512_set1_ps(0x1p112f)));
  const __m512i largest_exponent = _mm512_set1_epi32(0x7c000000);
  const __mmask16 special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(top, largest_exponent), largest_exponent);
  return {_mm512_castsi512_ps(_mm512_mask_or_epi32(value, special, value, _mm512_set1_epi32(0x7f800000)))};
}
