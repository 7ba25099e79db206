// Stockham's autosort form, decimation in frequency: each stage takes one factor off the length and writes its results
// where the next reads them in sequence, so that no permutation of the values is left at the end.
#include "media/real_dft.h"

#include <cmath>
#include <numbers>

#include "base/status.h"

namespace millrace {
namespace {

using Complex = RealDft::Complex;

Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
Complex operator*(double a, Complex b) { return {a * b.re, a * b.im}; }
Complex minus_i(Complex a) { return {a.im, -a.re}; }

Complex root(int k, int n) {
  const double angle = -2 * std::numbers::pi * k / n;
  return {std::cos(angle), std::sin(angle)};
}

// a := DFT of a, in place.
void butterfly(Complex (&a)[2]) {
  const Complex sum = a[0] + a[1];
  a[1] = a[0] - a[1];
  a[0] = sum;
}
void butterfly(Complex (&a)[3]) {
  constexpr double kSin = std::numbers::sqrt3 / 2;
  const Complex sum = a[1] + a[2];
  const Complex turned = kSin * minus_i(a[1] - a[2]);
  const Complex base = a[0] - 0.5 * sum;
  a[0] = a[0] + sum;
  a[1] = base + turned;
  a[2] = base - turned;
}
void butterfly(Complex (&a)[4]) {
  const Complex even = a[0] + a[2];
  const Complex even_difference = a[0] - a[2];
  const Complex odd = a[1] + a[3];
  const Complex odd_difference = minus_i(a[1] - a[3]);
  a[0] = even + odd;
  a[1] = even_difference + odd_difference;
  a[2] = even - odd;
  a[3] = even_difference - odd_difference;
}
void butterfly(Complex (&a)[5]) {
  constexpr double kCos1 = 0.30901699437494742410;  // of 72 and 144 degrees
  constexpr double kCos2 = -0.80901699437494742410;
  constexpr double kSin1 = 0.95105651629515357212;
  constexpr double kSin2 = 0.58778525229247312917;
  const Complex outer = a[1] + a[4];
  const Complex inner = a[2] + a[3];
  const Complex outer_difference = minus_i(a[1] - a[4]);
  const Complex inner_difference = minus_i(a[2] - a[3]);
  const Complex base1 = a[0] + kCos1 * outer + kCos2 * inner;
  const Complex base2 = a[0] + kCos2 * outer + kCos1 * inner;
  const Complex turned1 = kSin1 * outer_difference + kSin2 * inner_difference;
  const Complex turned2 = kSin2 * outer_difference - kSin1 * inner_difference;
  a[0] = a[0] + outer + inner;
  a[1] = base1 + turned1;
  a[2] = base2 + turned2;
  a[3] = base2 - turned2;
  a[4] = base1 - turned1;
}

// One stage: `stride` interleaved transforms of length P * rest each.
template <int P>
void run_stage(int rest, int stride, const Complex* roots, const Complex* in, Complex* out) {
  for (int q = 0; q < rest; ++q) {
    Complex turn[P];
    for (int k = 1; k < P; ++k) turn[k] = roots[q * k * stride];
    for (int r = 0; r < stride; ++r) {
      Complex a[P];
      for (int j = 0; j < P; ++j) a[j] = in[r + stride * (q + j * rest)];
      butterfly(a);
      Complex* to = out + r + stride * P * q;
      to[0] = a[0];
      for (int k = 1; k < P; ++k) to[stride * k] = a[k] * turn[k];
    }
  }
}

}  // namespace

bool RealDft::supports(int size) {
  if (size < 2 || size % 2 != 0) return false;
  for (const int prime : {2, 3, 5}) {
    while (size % prime == 0) size /= prime;
  }
  return size == 1;
}

RealDft::RealDft(int size) : size_(size) {
  CHECK(supports(size));
  const int half = size / 2;
  int left = half;
  for (const int factor : {4, 2, 3, 5}) {
    for (; left % factor == 0; left /= factor) factors_.push_back(factor);
  }
  for (int k = 0; k < half; ++k) roots_.push_back(root(k, half));
  for (int k = 0; k <= half; ++k) split_.push_back(root(k, size));
  values_.resize(static_cast<std::size_t>(half) + 1);
  other_.resize(static_cast<std::size_t>(half) + 1);
}

void RealDft::power(std::span<const double> frame, std::span<double> out) {
  const int half = size_ / 2;
  CHECK(static_cast<int>(frame.size()) == size_ && static_cast<int>(out.size()) == half + 1);
  Complex* in = values_.data();
  Complex* next = other_.data();
  for (int k = 0; k < half; ++k) {  // even samples are real parts, odd ones imaginary parts
    in[k] = {frame[2 * static_cast<std::size_t>(k)], frame[2 * static_cast<std::size_t>(k) + 1]};
  }
  int left = half;
  int stride = 1;
  for (const int factor : factors_) {
    left /= factor;
    if (factor == 4) run_stage<4>(left, stride, roots_.data(), in, next);
    if (factor == 2) run_stage<2>(left, stride, roots_.data(), in, next);
    if (factor == 3) run_stage<3>(left, stride, roots_.data(), in, next);
    if (factor == 5) run_stage<5>(left, stride, roots_.data(), in, next);
    stride *= factor;
    std::swap(in, next);
  }
  // X[k] of the real frame, from Z[k] and Z[half - k] of its halves.
  in[half] = in[0];
  for (int k = 0; k <= half; ++k) {
    const Complex mirrored = {in[half - k].re, -in[half - k].im};
    const Complex even = in[k] + mirrored;
    const Complex odd = minus_i(in[k] - mirrored) * split_[static_cast<std::size_t>(k)];
    const Complex twice = even + odd;
    out[static_cast<std::size_t>(k)] = 0.25 * (twice.re * twice.re + twice.im * twice.im);
  }
}

}  // namespace millrace
