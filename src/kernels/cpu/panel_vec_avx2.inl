// The vector operations of the panel kernels, in 256 bits: a vector holds half a panel, 8 of its rows. Functions of the
// floats have the names of vec_avx2.inl, whose V is a type of its own. Included inside an unnamed namespace after the
// intrinsics; needs AVX2, FMA and F16C.

using Ints = __m256i;
using Floats = __m256;
constexpr int kLanes = 8;

static inline Ints load_bytes(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
static inline Floats load_f16(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
// kLanes bytes as floats.
static inline Floats load_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
static inline Floats load_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

static inline Ints zero_ints() { return _mm256_setzero_si256(); }
static inline Ints set1_ints(int32_t a) { return _mm256_set1_epi32(a); }
static inline Ints set1_bytes(char a) { return _mm256_set1_epi8(a); }
static inline Ints and_bits(Ints a, Ints b) { return _mm256_and_si256(a, b); }
static inline Ints or_bits(Ints a, Ints b) { return _mm256_or_si256(a, b); }
static inline Ints xor_bits(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
static inline Ints words_left(Ints a, int by) { return _mm256_slli_epi16(a, by); }
static inline Ints words_right(Ints a, int by) { return _mm256_srli_epi16(a, by); }

static inline Floats zero() { return _mm256_setzero_ps(); }
static inline Floats set1(float a) { return _mm256_set1_ps(a); }
static inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
static inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
static inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }

// The first `count` lanes, 0 to kLanes, from memory that has no more, and to it.
static inline __m256i lane_mask(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline Floats load_partial(const float* p, int64_t count) { return _mm256_maskload_ps(p, lane_mask(count)); }
static inline void store_partial(float* p, Floats a, int64_t count) {
  if (count == kLanes) return _mm256_storeu_ps(p, a);  // masked stores are tens of operations on some processors
  _mm256_maskstore_ps(p, lane_mask(count), a);
}

// Four elements of x in every lane.
static inline Ints four(const int8_t* p) {
  int32_t word = 0;
  __builtin_memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}

static inline int32_t largest(__m256i a) {
  __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

static inline int32_t sum(__m256i a) {
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

// 16 floats, in [-127, 127] after the product, as bytes; returns their sum.
static inline int32_t quantize16(__m256 low, __m256 high, __m256 inverse, int8_t* to) {
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(low, inverse));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(high, inverse));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  return sum(_mm256_add_epi32(a, b));
}

static void quantize(PanelKind kind, const float* x, int64_t blocks, int64_t rows, int8_t* q, float* d,
                     int32_t* terms) {
  const int64_t terms_step = kind == PanelKind::kQ6_K ? 2 * rows : rows;
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < blocks; ++b, x += kPanelBlock, q += rows * kPanelBlock, d += rows, terms += terms_step) {
    __m256 v[4];
    // The order of the bits is that of the magnitudes, infinity and NaN above all.
    __m256i most_of = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + i * kLanes);
      most_of = _mm256_max_epi32(most_of, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    const int32_t most_bits = largest(most_of);
    const bool finite = most_bits < 0x7f800000;
    float most = 0;
    __builtin_memcpy(&most, &most_bits, 4);
    const float scale = most / 127.0f;
    if (!finite || scale < 0x1p-126f) {
      *d = finite ? 0.0f : __builtin_nanf("");
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_setzero_si256());
      write_terms(kind, 0, 0, *d, rows, terms);
      continue;
    }
    *d = scale;
    const __m256 inverse = _mm256_set1_ps(127.0f / most);
    const int32_t low = quantize16(v[0], v[1], inverse, q);
    const int32_t high = quantize16(v[2], v[3], inverse, q + 16);
    write_terms(kind, low, high, scale, rows, terms);
  }
}
