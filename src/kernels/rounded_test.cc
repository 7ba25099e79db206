// Products of bf16 weights with bf16 activations: against the sums of ops.h written here with scalars, to the bit and
// on every instruction set that promises it, and against the oracle `ref`. (Batches, threads, places: bits_test.cc.)
#include <gtest/gtest.h>

#include <cmath>

#include "base/cpu_info.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

constexpr double kEps = 0x1p-24;

float rounded(float x) { return bf16_to_f32(f32_to_bf16(x)); }

// Element (r, n) by ops.h. The numbers here are far from 2^-126.
float by_formula(Matrix& x, int64_t r, const Weights& w, int64_t n) {
  const int64_t k = x.width;
  float total = 0;
  for (int64_t block = 0; block < k; block += 256) {
    const auto term = [&](int64_t i, float sum) {
      return i < k ? std::fma(rounded(x.at(r, i)), w.get(n * k + i), sum) : sum;
    };
    float sum = 0;
    for (int64_t i = block; i < std::min(k, block + 256); i += 2) sum = term(i, term(i + 1, sum));
    total = block == 0 ? sum : total + sum;
  }
  return total;
}

const std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {16, 32}, {17, 33}, {33, 256}, {70, 515}, {97, 1100}};

class RoundedTest : public ::testing::TestWithParam<Isa> {};

TEST_P(RoundedTest, ProductsAreTheStatedSums) {
  if (GetParam() == Isa::kRef || GetParam() == Isa::kAmx) GTEST_SKIP() << "its own sums: the next test";
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool, Activations::kBF16);
  uint64_t seed = 0;
  for (const auto& [n, k] : kShapes) {
    const Weights w({n, k}, DType::kBF16, ++seed, 2);
    for (const int64_t rows : {1, 5, 13, 40}) {
      SCOPED_TRACE(fmt::format("M {} N {} K {}", rows, n, k));
      Matrix x = Matrix::random(rows, k, ++seed, 3);
      Matrix y(rows, n, 1);
      ops->linear(x.rows(), w.view, y.rows());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < n; ++j) ASSERT_EQ(y.at(r, j), by_formula(x, r, w, j)) << r << " " << j;
      }
      EXPECT_TRUE(y.gaps_untouched());
    }
  }
}

// Forward error of a sum of k exact products (Higham, chapter 3), which the tiles of amx stay below too.
TEST_P(RoundedTest, ProductsAreThoseOfTheOracle) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool, Activations::kBF16);
  const std::unique_ptr<Ops> oracle = make_ops(Isa::kRef, pool, Activations::kBF16);
  uint64_t seed = 100;
  for (const auto& [n, k] : kShapes) {
    SCOPED_TRACE(fmt::format("N {} K {}", n, k));
    const Weights w({n, k}, DType::kBF16, ++seed, 2);
    Matrix x = Matrix::random(21, k, ++seed);
    Matrix y(21, n), wanted(21, n);
    ops->linear(x.rows(), w.view, y.rows());
    oracle->linear(x.rows(), w.view, wanted.rows());
    for (int64_t i = 0; i < 21 * n; ++i) {
      ASSERT_NEAR(y.at(i / n, i % n), wanted.at(i / n, i % n),
                  static_cast<double>(k + 2) * kEps * static_cast<double>(k))
          << i;
    }
  }
}

// Other weights do not differ, whatever x is.
TEST_P(RoundedTest, ProductsOfOtherWeightsStay) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> rounding = make_ops(GetParam(), pool, Activations::kBF16);
  const std::unique_ptr<Ops> exact = make_ops(GetParam(), pool);
  Matrix x = Matrix::random(9, 70, 1);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Weights w({33, 70}, type, 2);
    Matrix a(9, 33), b(9, 33);
    rounding->linear(x.rows(), w.view, a.rows());
    exact->linear(x.rows(), w.view, b.rows());
    EXPECT_EQ(a.storage.size(), b.storage.size());
    const bool same = std::memcmp(a.rows().data, b.rows().data, 9 * 33 * 4) == 0;
    EXPECT_EQ(same, type != DType::kBF16) << dtype_name(type);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RoundedTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

#if defined(__x86_64__)
// VDPBF16PS against multiply-adds, also of numbers that it takes for zero, of infinities and of NaN.
TEST(Rounded, WithAndWithoutTheInstruction) {
  if (!cpu_info().avx512_bf16) GTEST_SKIP() << "this processor has no AVX512_BF16";
  ThreadPool pool(2);
  KernelTable with = kAvx512Kernels, without = kAvx512Kernels;
  with.linear[static_cast<int>(WeightKind::kBF16)] = &kAvx512Bf16LinearKernels;
  without.linear[static_cast<int>(WeightKind::kBF16)] = kAvx512Kernels.rounded;
  const std::unique_ptr<Ops> a = make_cpu_ops("avx512", with, pool), b = make_cpu_ops("avx512", without, pool);
  for (const float scale : {1.0f, 0x1p-70f, 0x1p-126f, 0x1p-130f, 0x1p100f}) {
    Weights w({37, 300}, DType::kBF16, 1, 2);
    for (int64_t i = 0; i < 37 * 300; ++i) w.set(i, w.get(i) * (i % 3 == 0 ? scale : 1.0f));
    Matrix x = Matrix::random(19, 300, 2, 0, scale);
    x.at(3, 7) = kNan;
    x.at(4, 8) = std::numeric_limits<float>::infinity();
    x.at(5, 9) = std::numeric_limits<float>::max();
    x.at(6, 10) = 1e-40f;
    Matrix of_a(19, 37), of_b(19, 37);
    a->linear(x.rows(), w.view, of_a.rows());
    b->linear(x.rows(), w.view, of_b.rows());
    for (int64_t r = 0; r < 19; ++r) {
      for (int64_t j = 0; j < 37; ++j) {
        const float one = of_a.at(r, j), other = of_b.at(r, j);
        ASSERT_TRUE(one == other || (std::isnan(one) && std::isnan(other))) << scale << " " << r << " " << j;
      }
    }
  }
}
#endif

}  // namespace
}  // namespace millrace::kernels::testing
