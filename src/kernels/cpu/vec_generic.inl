// The 8-lane vector of the generic kernels, two 4-lane compiler vectors: SSE2 on x86-64, NEON on ARM. No fused
// multiply-add. Included once, by kernels_generic.cc, inside an unnamed namespace.

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

struct V8 {
  F4 lo, hi;
};

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
// Adding 1.5 * 2^23 leaves no fraction bits; ties go to even. For |a| < 2^22.
static inline V8 round_nearest(V8 a) {
  const F4 magic = set4(12582912.0f);
  return {(a.lo + magic) - magic, (a.hi + magic) - magic};
}
static inline F4 power_of_two4(F4 n) { return (F4)((__builtin_convertvector(n, I4) + 127) << 23); }
// 2^n for whole n in [-126, 127].
static inline V8 power_of_two(V8 n) { return {power_of_two4(n.lo), power_of_two4(n.hi)}; }
// a where not (x < limit), so also where x is NaN; else +0.
static inline V8 zero_where_less(V8 a, V8 x, V8 limit) {
  return {(F4)(~(x.lo < limit.lo) & (I4)a.lo), (F4)(~(x.hi < limit.hi) & (I4)a.hi)};
}
static inline bool any4(I4 mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
static inline bool any_nan(V8 a) { return any4((a.lo != a.lo) | (a.hi != a.hi)); }
static inline bool any_equal(V8 a, V8 b) { return any4((a.lo == b.lo) | (a.hi == b.hi)); }

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

static inline I4 pair_first4(W8 low, W8 high) { return (I4)__builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline I4 pair_last4(W8 low, W8 high) {
  return (I4)__builtin_shufflevector(low, high, 4, 12, 5, 13, 6, 14, 7, 15);
}

// binary16: shifted into place, exponent and mantissa are those of value * 2^-112, subnormals included, and the product
// is exact. The largest exponent means infinity or NaN and becomes that of binary32. (half.h says it in scalars; its
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
  int64_t eight;
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
