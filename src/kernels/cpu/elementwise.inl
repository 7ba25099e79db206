// exp and the ops that work element by element or on one row. A tail runs the same arithmetic in a partly filled
// vector, so an element's bits do not depend on where in the row it stands.
// Included by kernels_<isa>.cc after the vector type V of kWidth lanes.

// e^x within 2 units in the last place; 0 below -87.33 (where the result would leave the normal range), e^88.37 above
// 88.37, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial and the two-part ln 2 are those of Cephes'
// expf (S. L. Moshier). Adding 1.5 * 2^23 leaves no fraction bits: n is rounded to nearest, ties to even.
static inline V exp(V x) {
  const V low = set1(-87.3365447f);
  const V magic = set1(12582912.0f);
  const V bounded = min(set1(88.3762589f), max(low, x));
  const V shifted = fma(bounded, set1(1.44269504f), magic);
  const V n = sub(shifted, magic);
  V r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  V p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return zero_where_less(mul(p, power_of_two(shifted)), x, low);
}

static inline float exp_one(float x) {
  float lanes[kWidth];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

static void add_rows(const float* x, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, add(load(y + i), load(x + i)));
  if (i < count) store_partial(y + i, add(load_partial(y + i, count - i), load_partial(x + i, count - i)), count - i);
}

static void add_scaled(const float* x, int64_t count, const float* scale, float* y) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, fma(load(x + i), load(scale + i), load(y + i)));
  if (i < count) {
    const int64_t n = count - i;
    store_partial(y + i, fma(load_partial(x + i, n), load_partial(scale + i, n), load_partial(y + i, n)), n);
  }
}

// x + magnitude * sin(a)^2, a = frequency * x within the bound. a = n pi + r with |r| <= pi / 2, and the sign that n
// gives the sine is lost in the square. pi in three parts (Cephes, S. L. Moshier), whose products with an n of this size
// are exact; the series to r^13 leaves 7e-10. NaN is the second operand, which max and min hand on.
static inline V snake_of(V x, V frequency, V magnitude, V bound) {
  const V magic = set1(12582912.0f);
  const V a = min(bound, max(sub(zero(), bound), mul(x, frequency)));
  const V n = sub(fma(a, set1(0.318309886f), magic), magic);
  V r = fma(n, set1(-3.140625f), a);
  r = fma(n, set1(-9.67502593994140625e-4f), r);
  r = fma(n, set1(-1.509957990978376432e-7f), r);
  const V square = mul(r, r);
  V p = set1(1.6059043837e-10f);
  p = fma(p, square, set1(-2.5052108385e-8f));
  p = fma(p, square, set1(2.7557319224e-6f));
  p = fma(p, square, set1(-1.9841269841e-4f));
  p = fma(p, square, set1(8.3333333333e-3f));
  p = fma(p, square, set1(-1.6666666667e-1f));
  const V sine = fma(mul(p, square), r, r);
  return fma(magnitude, mul(sine, sine), x);
}

static void snake(const float* x, int64_t count, const float* frequency, const float* magnitude, float bound, float* y) {
  const V limit = set1(bound);
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    store(y + i, snake_of(load(x + i), load(frequency + i), load(magnitude + i), limit));
  }
  if (i < count) {
    const int64_t n = count - i;
    const V f = load_partial(frequency + i, n), m = load_partial(magnitude + i, n);
    store_partial(y + i, snake_of(load_partial(x + i, n), f, m, limit), n);
  }
}

static void depthwise(const float* x, int64_t stride, int64_t width, int64_t taps, const float* weight,
                      const float* bias, float* y) {
  int64_t i = 0;
  for (; i + kWidth <= width; i += kWidth) {
    V sum = load(bias + i);
    for (int64_t k = 0; k < taps; ++k) sum = fma(load(x + k * stride + i), load(weight + k * width + i), sum);
    store(y + i, sum);
  }
  if (i == width) return;
  const int64_t n = width - i;
  V sum = load_partial(bias + i, n);
  for (int64_t k = 0; k < taps; ++k) {
    sum = fma(load_partial(x + k * stride + i, n), load_partial(weight + k * width + i, n), sum);
  }
  store_partial(y + i, sum, n);
}

static inline V silu_times(V gate, V up) { return mul(div(gate, add(set1(1.0f), exp(sub(zero(), gate)))), up); }

static void swiglu(const float* gate, const float* up, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, silu_times(load(gate + i), load(up + i)));
  if (i < count) {
    const int64_t n = count - i;
    store_partial(y + i, silu_times(load_partial(gate + i, n), load_partial(up + i, n)), n);
  }
}

// x / (1 + exp(-2 u)) = 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation where x is negative.
static inline V gelu_by_tanh(V x) {
  const V inner = mul(x, fma(mul(x, x), set1(0.044715f), set1(1.0f)));
  return div(x, add(set1(1.0f), exp(mul(inner, set1(-1.59576912f)))));
}

// max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, with erfc(z) = (a1 t + ... + a5 t^5) exp(-z^2), t = 1 / (1 + p z), whose
// error is at most 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26). Beyond 14 it is below
// every f32, and an infinity times 0 would be NaN. NaN is the second operand everywhere, which max and min hand on.
static inline V gelu_by_erf(V x) {
  const V size = min(set1(14.0f), max(sub(zero(), x), x));
  const V z = mul(size, set1(0.707106781f));
  const V t = div(set1(1.0f), fma(z, set1(0.3275911f), set1(1.0f)));
  V p = fma(set1(1.061405429f), t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  const V erfc = mul(mul(p, t), exp(sub(zero(), mul(z, z))));
  return sub(max(zero(), x), mul(mul(size, set1(0.5f)), erfc));
}

template <V (*function)(V)>
static inline void map_row(const float* x, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(y + i, function(load(x + i)));
  if (i < count) store_partial(y + i, function(load_partial(x + i, count - i)), count - i);
}

static void gelu(const float* x, int64_t count, bool tanh, float* y) {
  if (tanh) return map_row<gelu_by_tanh>(x, count, y);
  map_row<gelu_by_erf>(x, count, y);
}

// The sum of a row's elements, or of their squares. Four sums side by side, as one would wait for each addition; what
// is left of the row goes to the first.
template <bool squares>
static inline float sum_row(const float* x, int64_t count) {
  const auto with = [](V v, V sum) { return squares ? fma(v, v, sum) : add(sum, v); };
  V sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
    UNROLL for (int j = 0; j < 4; ++j) sums[j] = with(load(x + i + j * kWidth), sums[j]);
  }
  for (; i < count; i += kWidth) {
    sums[0] = with(i + kWidth <= count ? load(x + i) : load_partial(x + i, count - i), sums[0]);
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

static void rms_norm(const float* x, int64_t width, const float* weight, int64_t group, float epsilon, float* y) {
  for (int64_t first = 0; first < width; first += group, x += group, y += group) {
    const float mean = sum_row<true>(x, group) / static_cast<float>(group);
    const V factor = set1(1.0f / __builtin_sqrtf(mean + epsilon));
    int64_t i = 0;
    for (; i + kWidth <= group; i += kWidth) store(y + i, mul(mul(load(x + i), factor), load(weight + i)));
    if (i < group) {
      const int64_t n = group - i;
      store_partial(y + i, mul(mul(load_partial(x + i, n), factor), load_partial(weight + i, n)), n);
    }
  }
}

// The row less its mean comes to y first, so that lanes beyond its end are 0 in the sum of squares.
static void layer_norm(const float* x, int64_t width, const float* weight, const float* bias, float epsilon, float* y) {
  const V mean = set1(sum_row<false>(x, width) / static_cast<float>(width));
  int64_t i = 0;
  for (; i + kWidth <= width; i += kWidth) store(y + i, sub(load(x + i), mean));
  if (i < width) store_partial(y + i, sub(load_partial(x + i, width - i), mean), width - i);
  const float variance = sum_row<true>(y, width) / static_cast<float>(width);
  const V factor = set1(1.0f / __builtin_sqrtf(variance + epsilon));
  for (i = 0; i + kWidth <= width; i += kWidth) {
    store(y + i, fma(mul(load(y + i), factor), load(weight + i), load(bias + i)));
  }
  if (i < width) {
    const int64_t n = width - i;
    const V scaled = mul(load_partial(y + i, n), factor);
    store_partial(y + i, fma(scaled, load_partial(weight + i, n), load_partial(bias + i, n)), n);
  }
}

// Two products and one addition, each rounded, as Hugging Face computes it.
static void rope(float* x, int64_t width, int64_t head_dim, const float* cos, const float* sin, int64_t half) {
  for (int64_t first = 0; first < width; first += head_dim) {
    float* low = x + first;
    float* high = low + half;
    int64_t i = 0;
    for (; i + kWidth <= half; i += kWidth) {
      const V a = load(low + i);
      const V b = load(high + i);
      const V c = load(cos + i);
      const V s = load(sin + i);
      store(low + i, sub(mul(a, c), mul(b, s)));
      store(high + i, add(mul(b, c), mul(a, s)));
    }
    if (i == half) continue;
    const int64_t n = half - i;
    const V a = load_partial(low + i, n);
    const V b = load_partial(high + i, n);
    const V c = load_partial(cos + i, n);
    const V s = load_partial(sin + i, n);
    store_partial(low + i, sub(mul(a, c), mul(b, s)), n);
    store_partial(high + i, add(mul(b, c), mul(a, s)), n);
  }
}
