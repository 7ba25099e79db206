// The 8-lane vector of the generic kernels, two 4-lane compiler vectors: SSE2 on x86-64, NEON on ARM. No fused
// multiply-add. Included once, by kernels_generic.cc, inside an unnamed namespace.

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

struct V8 {
  F4 lo, hi;
};
using V = V8;
constexpr int64_t kWidth = 8;
// Query rows of an attention tile. 16 registers of half the width.
constexpr int kTile = 3;
// Least of the query rows that each take a lane (attention_lanes.inl): never.
constexpr int64_t kLaneQueries = kAttentionQueries + 1;
// There: vectors of queries that meet so many keys at once.
constexpr int kGroupVectors = 1;
constexpr int kGroupKeys = 6;
// Most query rows that read keys and values from the pages themselves.
constexpr int kDirectQueries = 3;

static inline F4 set4(float x) { return F4{x, x, x, x}; }
static inline V8 zero() { return {set4(0.0f), set4(0.0f)}; }
static inline V8 set1(float x) { return {set4(x), set4(x)}; }
static inline V8 load(const float* p) {
  V8 a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}
static inline void store(float* p, V8 a) { __builtin_memcpy(p, &a, sizeof a); }
static inline V8 add(V8 a, V8 b) { return {a.lo + b.lo, a.hi + b.hi}; }
static inline V8 sub(V8 a, V8 b) { return {a.lo - b.lo, a.hi - b.hi}; }
static inline V8 mul(V8 a, V8 b) { return {a.lo * b.lo, a.hi * b.hi}; }
static inline V8 div(V8 a, V8 b) { return {a.lo / b.lo, a.hi / b.hi}; }
static inline V8 fma(V8 a, V8 b, V8 c) { return {a.lo * b.lo + c.lo, a.hi * b.hi + c.hi}; }
// Bits of a where the mask is set, else of b.
static inline F4 select4(I4 mask, F4 a, F4 b) { return (F4)((mask & (I4)a) | (~mask & (I4)b)); }
// The second operand where either is NaN.
static inline V8 max(V8 a, V8 b) { return {select4(a.lo > b.lo, a.lo, b.lo), select4(a.hi > b.hi, a.hi, b.hi)}; }
static inline V8 min(V8 a, V8 b) { return {select4(a.lo < b.lo, a.lo, b.lo), select4(a.hi < b.hi, a.hi, b.hi)}; }
static inline F4 power_of_two4(F4 shifted) { return (F4)(((I4)shifted << 23) + 0x3f800000); }
// 2^n, n whole in [-126, 127], from the sum n + 1.5 * 2^23: the low bits of it are n.
static inline V8 power_of_two(V8 shifted) { return {power_of_two4(shifted.lo), power_of_two4(shifted.hi)}; }
// a where not (x < limit), so also where x is NaN; else +0.
static inline V8 zero_where_less(V8 a, V8 x, V8 limit) {
  return {(F4)(~(x.lo < limit.lo) & (I4)a.lo), (F4)(~(x.hi < limit.hi) & (I4)a.hi)};
}
static inline bool any4(I4 mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }

// The first n lanes, 0 < n < 8; the others are +0 and their memory is not touched.
static inline V8 load_partial(const float* p, int64_t n) {
  V8 a = zero();
  __builtin_memcpy(&a, p, static_cast<uint64_t>(n) * sizeof(float));
  return a;
}
static inline void store_partial(float* p, V8 a, int64_t n) {
  __builtin_memcpy(p, &a, static_cast<uint64_t>(n) * sizeof(float));
}

// Words of 16 bits, and pairs of them side by side: what becomes the low and the high half of a 32-bit lane.
typedef int16_t W8 __attribute__((vector_size(16)));
typedef int8_t B16 __attribute__((vector_size(16)));
typedef int64_t L2 __attribute__((vector_size(16)));

static inline I4 pair_first4(W8 low, W8 high) {
  return (I4)__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11);
}
static inline I4 pair_last4(W8 low, W8 high) {
  return (I4)__builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
}

// binary16: shifted into place, exponent and mantissa are those of value * 2^-112, subnormals included, and the product
// is exact. The largest exponent means infinity or NaN and becomes that of binary32. (half.h has it in scalars; its
// inline functions must not be used here.)
static inline F4 widen_f16(I4 bits) {
  const I4 shifted = (bits & 0x7fff) << 13;
  const F4 value = (F4)shifted * set4(0x1p112f);
  const I4 special = ((bits & 0x7c00) == 0x7c00) & 0x7f800000;
  return (F4)((I4)value | special | ((bits & 0x8000) << 16));
}

template <WeightKind kind>
static inline V8 load_weights(const char* p) {
  V8 a;
  if constexpr (kind == WeightKind::kF32) {
    __builtin_memcpy(&a, p, sizeof a);
    return a;
  }
  W8 words;
  __builtin_memcpy(&words, p, sizeof words);
  const W8 none = {};
  if constexpr (kind == WeightKind::kF16) {
    return {widen_f16(pair_first4(words, none)), widen_f16(pair_last4(words, none))};
  }
  return {(F4)pair_first4(none, words), (F4)pair_last4(none, words)};
}

// Each byte comes to the top of a 32-bit lane and is shifted down with its sign.
static inline V8 load_int8(const char* p) {
  int64_t eight = 0;
  __builtin_memcpy(&eight, p, sizeof eight);
  const B16 bytes = (B16)L2{eight, 0};
  const B16 none = {};
  const W8 high = (W8)__builtin_shufflevector(none, bytes, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const I4 lo = pair_first4((W8)none, high) >> 24;
  const I4 hi = pair_last4((W8)none, high) >> 24;
  return {__builtin_convertvector(lo, F4), __builtin_convertvector(hi, F4)};
}

// ((0+1) + (2+3)) + ((4+5) + (6+7)).
static inline float sum(V8 a) {
  return ((a.lo[0] + a.lo[1]) + (a.lo[2] + a.lo[3])) + ((a.hi[0] + a.hi[1]) + (a.hi[2] + a.hi[3]));
}
static inline void sum4(V8 a, V8 b, V8 c, V8 d, float* out) {
  out[0] = sum(a);
  out[1] = sum(b);
  out[2] = sum(c);
  out[3] = sum(d);
}
// Of lanes that are no NaN.
static inline float largest(V8 a) {
  const F4 b = select4(a.lo > a.hi, a.lo, a.hi);
  const float c = b[0] > b[1] ? b[0] : b[1];
  const float d = b[2] > b[3] ? b[2] : b[3];
  return c > d ? c : d;
}

// ---- eight rows at a time, four bytes of each to a lane -------------------------------------------------------------

static inline F4 row4(const char* row) {
  F4 a;
  __builtin_memcpy(&a, row, sizeof a);
  return a;
}

static inline void transpose4(const char* const* rows, int64_t offset, F4 (&units)[4]) {
  const F4 a = row4(rows[0] + offset);
  const F4 b = row4(rows[1] + offset);
  const F4 c = row4(rows[2] + offset);
  const F4 d = row4(rows[3] + offset);
  const F4 low_ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const F4 low_cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const F4 high_ab = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const F4 high_cd = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  units[0] = __builtin_shufflevector(low_ab, low_cd, 0, 1, 4, 5);
  units[1] = __builtin_shufflevector(low_ab, low_cd, 2, 3, 6, 7);
  units[2] = __builtin_shufflevector(high_ab, high_cd, 0, 1, 4, 5);
  units[3] = __builtin_shufflevector(high_ab, high_cd, 2, 3, 6, 7);
}

// units[u], lane l = the bytes offset + 4 u .. + 3 of rows[l].
static inline void transpose_rows(const char* const* rows, int64_t offset, V8 (&units)[4]) {
  F4 lo[4], hi[4];
  transpose4(rows, offset, lo);
  transpose4(rows + 4, offset, hi);
  for (int u = 0; u < 4; ++u) units[u] = {lo[u], hi[u]};
}

template <KvKind kind, int index>
static inline F4 widen_unit4(F4 unit) {
  const I4 bits = (I4)unit;
  if constexpr (kind == KvKind::kF32) return unit;
  if constexpr (kind == KvKind::kI8) return __builtin_convertvector((bits << (24 - 8 * index)) >> 24, F4);
  if constexpr (kind == KvKind::kBF16) return (F4)(index == 0 ? bits << 16 : bits & static_cast<int>(0xffff0000u));
  return widen_f16(index == 0 ? bits & 0xffff : (bits >> 16) & 0xffff);
}

// Element `index` of the 1, 2 or 4 that lie in each lane, widened exactly.
template <KvKind kind, int index>
static inline V8 widen_unit(V8 unit) {
  return {widen_unit4<kind, index>(unit.lo), widen_unit4<kind, index>(unit.hi)};
}
