// The vector operations of the panel kernels, in 512 bits: a vector holds all 16 rows of a panel. Functions of the
// floats have the names of vec_avx512.inl, whose V is a type of its own. Included inside an unnamed namespace after the
// intrinsics; needs AVX-512 F, BW, VL, DQ and VNNI.

using Ints = __m512i;
using Floats = __m512;
constexpr int kLanes = 16;

static inline Ints load_bytes(const void* p) { return _mm512_load_si512(p); }
static inline Floats load_f16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
// kLanes bytes as floats.
static inline Floats load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}
static inline Floats load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

static inline Ints zero_ints() { return _mm512_setzero_si512(); }
static inline Ints set1_ints(int32_t a) { return _mm512_set1_epi32(a); }
static inline Ints set1_bytes(char a) { return _mm512_set1_epi8(a); }
static inline Ints and_bits(Ints a, Ints b) { return _mm512_and_si512(a, b); }
static inline Ints or_bits(Ints a, Ints b) { return _mm512_or_si512(a, b); }
static inline Ints xor_bits(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
static inline Ints words_left(Ints a, int by) { return _mm512_slli_epi16(a, static_cast<unsigned>(by)); }
static inline Ints words_right(Ints a, int by) { return _mm512_srli_epi16(a, static_cast<unsigned>(by)); }

static inline Floats zero() { return _mm512_setzero_ps(); }
static inline Floats set1(float a) { return _mm512_set1_ps(a); }
static inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
static inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }

// The first `count` lanes, 0 to kLanes, from memory that has no more, and to it.
static inline __mmask16 lane_mask(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
static inline Floats load_partial(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(lane_mask(count), p); }
static inline void store_partial(float* p, Floats a, int64_t count) { _mm512_mask_storeu_ps(p, lane_mask(count), a); }

// Four elements of x in every lane.
static inline Ints four(const int8_t* p) {
  int32_t word = 0;
  __builtin_memcpy(&word, p, 4);
  return _mm512_set1_epi32(word);
}

// sum + the products of w's unsigned bytes with the four of x, in each lane.
static inline Ints dot(Ints sum, Ints w, Ints x) { return _mm512_dpbusd_epi32(sum, w, x); }

typedef int32_t Four __attribute__((may_alias));
// The same with the four at x. Written as an instruction because g++ 12 does not know that this one can repeat its
// operand from memory, and a second instruction for each would be the bottleneck.
static inline __attribute__((always_inline)) Ints dot(Ints sum, Ints w, const int8_t* x) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const Four*>(x)));
  return sum;
}

static void quantize(PanelKind kind, const float* x, int64_t blocks, int64_t rows, int8_t* q, float* d,
                     int32_t* terms) {
  const int64_t terms_step = kind == PanelKind::kQ6_K ? 2 * rows : rows;
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < blocks; ++b, x += kPanelBlock, q += rows * kPanelBlock, d += rows, terms += terms_step) {
    const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
    // The order of the bits is that of the magnitudes, infinity and NaN above all.
    const int32_t most_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(
        _mm512_and_si512(_mm512_castps_si512(low), magnitude), _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
    const bool finite = most_bits < 0x7f800000;
    float most = 0;
    __builtin_memcpy(&most, &most_bits, 4);
    const float scale = most / 127.0f;
    const bool some = finite && scale >= 0x1p-126f;
    *d = finite ? (some ? scale : 0.0f) : __builtin_nanf("");
    const __m512 inverse = _mm512_set1_ps(some ? 127.0f / most : 0.0f);
    const __mmask16 keep = static_cast<__mmask16>(some ? 0xffff : 0);  // 0 times infinity is not 0
    const __m512i rounded_low = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(low, inverse));
    const __m512i rounded_high = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(high, inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtepi32_epi8(rounded_low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtepi32_epi8(rounded_high));
    write_terms(kind, _mm512_reduce_add_epi32(rounded_low), _mm512_reduce_add_epi32(rounded_high), *d, rows, terms);
  }
}
