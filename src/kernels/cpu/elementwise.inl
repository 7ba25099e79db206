// exp and the ops that work element by element or on one row. A tail runs the same arithmetic in a partly filled
// vector, so an element's bits do not depend on where in the row it stands.
// Included by kernels_<isa>.cc after the vector type.

// e^x within 2 units in the last place; 0 below -87.33 (where the result would leave the normal range), e^88.37 above
// 88.37, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial and the two-part ln 2 are those of Cephes'
// expf (S. L. Moshier).
static inline V8 exp(V8 x) {
  const V8 low = set1(-87.3365447f);
  const V8 bounded = min(set1(88.3762589f), max(low, x));
  const V8 n = round_nearest(mul(bounded, set1(1.44269504f)));
  V8 r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  V8 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return zero_where_less(mul(p, power_of_two(n)), x, low);
}

static inline float exp_one(float x) {
  float lanes[8];
  store(lanes, exp(set1(x)));
  return lanes[0];
}

static void add_rows(const float* x, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) store(y + i, add(load(y + i), load(x + i)));
  if (i < count) store_partial(y + i, add(load_partial(y + i, count - i), load_partial(x + i, count - i)), count - i);
}

static inline V8 silu_times(V8 gate, V8 up) { return mul(div(gate, add(set1(1.0f), exp(sub(zero(), gate)))), up); }

static void swiglu(const float* gate, const float* up, int64_t count, float* y) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) store(y + i, silu_times(load(gate + i), load(up + i)));
  if (i < count) {
    const int64_t n = count - i;
    store_partial(y + i, silu_times(load_partial(gate + i, n), load_partial(up + i, n)), n);
  }
}

static void rms_norm(const float* x, int64_t width, const float* weight, int64_t group, float epsilon, float* y) {
  for (int64_t first = 0; first < width; first += group, x += group, y += group) {
    V8 lanes = zero();
    int64_t i = 0;
    for (; i + 8 <= group; i += 8) {
      const V8 v = load(x + i);
      lanes = fma(v, v, lanes);
    }
    if (i < group) {
      const V8 v = load_partial(x + i, group - i);
      lanes = fma(v, v, lanes);
    }
    const float mean = sum(lanes) / static_cast<float>(group);
    const V8 factor = set1(1.0f / __builtin_sqrtf(mean + epsilon));
    for (i = 0; i + 8 <= group; i += 8) store(y + i, mul(mul(load(x + i), factor), load(weight + i)));
    if (i < group) {
      const int64_t n = group - i;
      store_partial(y + i, mul(mul(load_partial(x + i, n), factor), load_partial(weight + i, n)), n);
    }
  }
}

// Two products and one addition, each rounded, as Hugging Face computes it.
static void rope(float* x, int64_t width, int64_t head_dim, const float* cos, const float* sin, int64_t half) {
  for (int64_t first = 0; first < width; first += head_dim) {
    float* low = x + first;
    float* high = low + half;
    int64_t i = 0;
    for (; i + 8 <= half; i += 8) {
      const V8 a = load(low + i);
      const V8 b = load(high + i);
      const V8 c = load(cos + i);
      const V8 s = load(sin + i);
      store(low + i, sub(mul(a, c), mul(b, s)));
      store(high + i, add(mul(b, c), mul(a, s)));
    }
    if (i == half) continue;
    const int64_t n = half - i;
    const V8 a = load_partial(low + i, n);
    const V8 b = load_partial(high + i, n);
    const V8 c = load_partial(cos + i, n);
    const V8 s = load_partial(sin + i, n);
    store_partial(low + i, sub(mul(a, c), mul(b, s)), n);
    store_partial(high + i, add(mul(b, c), mul(a, s)), n);
  }
}

// Pass one: the maximum, and whether there is a NaN. Pass two: where the maximum stands first.
static int32_t argmax(const float* x, int64_t count) {
  if (count <= 0) return -1;
  V8 best = set1(x[0]);
  bool nan = false;
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const V8 v = load(x + i);
    nan |= any_nan(v);
    best = max(v, best);
  }
  float lanes[8];
  store(lanes, best);
  float top = lanes[0];
  for (int lane = 1; lane < 8; ++lane) top = lanes[lane] > top ? lanes[lane] : top;
  for (; i < count; ++i) {
    nan |= x[i] != x[i];
    top = x[i] > top ? x[i] : top;
  }
  if (nan) return -1;
  const V8 wanted = set1(top);
  for (i = 0; i + 8 <= count && !any_equal(load(x + i), wanted);) i += 8;
  while (x[i] != top) ++i;
  return static_cast<int32_t>(i);
}
