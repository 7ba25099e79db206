// The vectors of linear for any processor: those of vec_generic.inl, and words that hold a pair of bf16.

typedef V8 LV;
struct LPairs {
  I4 lo, hi;
};
static constexpr int kLanes = 8;
static constexpr int kVectors = 1;
static constexpr int kRowTile = 4;
static constexpr int kFewRows = 6;
static constexpr int kFewTile = 6;
static constexpr int kWideRows = 0;

static inline LV lv_zero() { return zero(); }
static inline LV lv_set1(float x) { return set1(x); }
static inline LV lv_load(const float* p) { return load(p); }
static inline void lv_store(float* p, LV a) { store(p, a); }
static inline LV lv_add(LV a, LV b) { return add(a, b); }
static inline LV lv_fma(LV a, LV b, LV c) { return fma(a, b, c); }
static inline LV lv_load_f16(const char* p) { return load_weights<WeightKind::kF16>(p); }
static inline LPairs lv_load_pairs(const char* p) {
  LPairs a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}
static inline LV lv_first(LPairs a) { return {(F4)(a.lo << 16), (F4)(a.hi << 16)}; }
static inline LV lv_second(LPairs a) {
  return {(F4)(a.lo & static_cast<int32_t>(0xffff0000u)), (F4)(a.hi & static_cast<int32_t>(0xffff0000u))};
}
