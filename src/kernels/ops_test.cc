// Every op of every implementation against a model in f64 written here from the formula, over odd shapes. Each
// tolerance is a bound derived from the op's own order of rounding, not a number that happened to pass.
#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

constexpr double kEps = 0x1p-24;  // half a unit in the last place of f32, relative
const DType kWeightTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class OpsTest : public ::testing::TestWithParam<Isa> {
 protected:
  ThreadPool pool_{2};
  std::unique_ptr<Ops> ops_ = make_ops(GetParam(), pool_);
};

// Forward error of a sum of K products in blocks of 256: at most 256 additions in a block, K/256 over the blocks, the
// product's own rounding (generic), then bias and old value: that many eps times the sum of magnitudes (Higham, chapter
// 3). The shorter sums of "ref" and the tiles of "amx" stay below it.
void expect_linear(Ops& ops, int64_t rows, int64_t n, int64_t k, DType dtype, bool bias, bool accumulate) {
  SCOPED_TRACE(fmt::format("M {} N {} K {} {} bias {} accumulate {}", rows, n, k, dtype_name(dtype), bias, accumulate));
  Matrix x = Matrix::random(rows, k, 1, 3);
  Matrix y = Matrix::random(rows, n, 2, 5);
  Matrix before = y;
  const Weights w({n, k}, dtype, 3, 2);  // 2 bytes off every alignment
  const Weights b({n}, dtype, 4, 6);
  LinearOptions options;
  if (bias) options.bias = b.view;
  options.accumulate = accumulate;
  ops.linear(x.rows(), w.view, y.rows(), options);
  const double additions = static_cast<double>(std::min<int64_t>(k, 256) + k / 256 + 6);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      double magnitude = 0;
      const auto term = [&](double value) {
        sum += value;
        magnitude += std::fabs(value);
      };
      for (int64_t i = 0; i < k; ++i) term(double{x.at(r, i)} * double{w.get(j * k + i)});
      if (bias) term(b.get(j));
      if (accumulate) term(before.at(r, j));
      ASSERT_NEAR(y.at(r, j), sum, additions * kEps * magnitude) << "row " << r << " col " << j;
    }
  }
  EXPECT_TRUE(y.gaps_untouched());
}

TEST_P(OpsTest, LinearOverOddShapes) {
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 37}) {
    for (int64_t n : {1, 3, 4, 8, 13, 33}) {
      for (int64_t k : {1, 7, 8, 9, 64, 100}) {
        for (DType dtype : kWeightTypes) expect_linear(*ops_, rows, n, k, dtype, (n + k) % 2 == 0, rows % 2 == 0);
      }
    }
  }
}

TEST_P(OpsTest, LinearOverSeveralBlocks) {
  for (DType dtype : kWeightTypes) {
    expect_linear(*ops_, 80, 70, 515, dtype, true, true);  // two row, three column and two depth blocks, all ragged
    expect_linear(*ops_, 1, 129, 1537, dtype, false, false);
    expect_linear(*ops_, 6, 33, 1024, dtype, false, true);
  }
}

TEST_P(OpsTest, LinearWithoutInputsIsBiasAlone) {
  for (int64_t rows : {1, 8}) {
    Matrix y(rows, 5);
    const Weights w({5, 0}, DType::kF32, 1);
    const Weights b({5}, DType::kBF16, 2);
    ops_->linear(ConstRows(nullptr, rows, 0), w.view, y.rows(), {.bias = b.view});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(y.at(r, j), b.get(j));
    }
  }
}

TEST_P(OpsTest, EmbeddingIsExact) {
  for (DType dtype : kWeightTypes) {
    for (int64_t width : {1, 8, 21, 64}) {
      const Weights table({11, width}, dtype, 5, 2);
      const std::vector<int32_t> ids = {10, 0, 3, 3, 7};
      Matrix y(5, width, 4);
      ops_->embedding(table.view, ids, y.rows());
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          ASSERT_EQ(y.at(r, i), table.get(ids[static_cast<std::size_t>(r)] * width + i));
        }
      }
      EXPECT_TRUE(y.gaps_untouched());
    }
  }
}

// The sum of squares has no cancellation: (D/8 + 5) eps relative, halved by the root, plus seven roundings after it.
TEST_P(OpsTest, RmsNormByRowAndByHead) {
  for (DType dtype : kWeightTypes) {
    for (int64_t group : {2, 7, 8, 20, 64, 100, 288}) {
      for (int64_t heads : {1, 3}) {
        Matrix x = Matrix::random(5, group * heads, 6, 2, 3.0f);
        const Weights w({group}, dtype, 7, 2);
        Matrix y(5, group * heads, 1);
        ops_->rms_norm(x.rows(), w.view, 1e-5f, y.rows());
        for (int64_t r = 0; r < 5; ++r) {
          for (int64_t h = 0; h < heads; ++h) {
            double squares = 0;
            for (int64_t i = 0; i < group; ++i) squares += std::pow(x.at(r, h * group + i), 2);
            const double root = std::sqrt(squares / static_cast<double>(group) + double{1e-5f});
            for (int64_t i = 0; i < group; ++i) {
              const double expected = x.at(r, h * group + i) / root * w.get(i);
              ASSERT_NEAR(y.at(r, h * group + i), expected,
                          (static_cast<double>(group) / 16 + 10) * kEps * std::fabs(expected));
            }
          }
        }
        EXPECT_TRUE(y.gaps_untouched());
        ops_->rms_norm(x.rows(), w.view, 1e-5f, x.rows());  // in place: the same
        for (int64_t r = 0; r < 5; ++r) {
          ASSERT_EQ(std::memcmp(x.rows().row(r), y.rows().row(r), static_cast<std::size_t>(group * heads) * 4), 0);
        }
      }
    }
  }
}

TEST_P(OpsTest, AddIsOneRounding) {
  for (int64_t width : {1, 7, 8, 19, 64}) {
    Matrix x = Matrix::random(3, width, 8, 2);
    Matrix y = Matrix::random(3, width, 9, 1);
    Matrix before = y;
    ops_->add(x.rows(), y.rows());
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t i = 0; i < width; ++i) ASSERT_EQ(y.at(r, i), before.at(r, i) + x.at(r, i));
    }
    EXPECT_TRUE(y.gaps_untouched());
  }
}

// exp within 2 ulp (4 eps), one addition, one division, one product, each half an ulp: below 8 eps. The sweep takes the
// gate over the whole range where silu is not zero or the identity; 1e-36 covers gates below -87.
TEST_P(OpsTest, SwigluOverTheFullRange) {
  const int64_t width = 20011;
  Matrix gate(1, width);
  Matrix up = Matrix::random(1, width, 10);
  for (int64_t i = 0; i < width; ++i) gate.at(0, i) = -100.0f + 200.0f * static_cast<float>(i) / width;
  Matrix y(1, width, 3);
  ops_->swiglu(gate.rows(), up.rows(), y.rows());
  for (int64_t i = 0; i < width; ++i) {
    const double g = gate.at(0, i);
    const double expected = g / (1.0 + std::exp(-g)) * up.at(0, i);
    ASSERT_NEAR(y.at(0, i), expected, 8 * kEps * std::fabs(expected) + 1e-36) << "gate " << g;
  }
  EXPECT_TRUE(y.gaps_untouched());
  Matrix same = gate;
  ops_->swiglu(same.rows(), up.rows(), same.rows());
  EXPECT_EQ(std::memcmp(same.rows().data, y.rows().data, static_cast<std::size_t>(width) * 4), 0);
}

// Angles to 4 * 10^5 radians: the table is the correctly rounded cosine of the f32 angle, up to the two roundings.
TEST_P(OpsTest, RopeTableAndPartialRotation) {
  for (int64_t head_dim : {4, 6, 36, 64, 128}) {
    for (int64_t rotary : {head_dim, head_dim / 4 * 2}) {
      const int64_t half = rotary / 2;
      std::vector<float> inv_freq;
      for (int64_t i = 0; i < half; ++i) {
        inv_freq.push_back(static_cast<float>(std::pow(1e6, -static_cast<double>(i) / static_cast<double>(half))));
      }
      const std::vector<int32_t> positions = {0, 1, 511, 32767, 400000};
      const int64_t rows = static_cast<int64_t>(positions.size());
      Matrix cos(rows, half, 1);
      Matrix sin(rows, half, 2);
      ops_->rope_table(positions, inv_freq, 1.25f, cos.rows(), sin.rows());
      Matrix x = Matrix::random(rows, 3 * head_dim, 11, 2);
      Matrix before = x;
      ops_->rope(x.rows(), head_dim, cos.rows(), sin.rows());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < half; ++i) {
          const float angle =
              static_cast<float>(positions[static_cast<std::size_t>(r)]) * inv_freq[static_cast<std::size_t>(i)];
          const double c = 1.25 * std::cos(static_cast<double>(angle));
          const double s = 1.25 * std::sin(static_cast<double>(angle));
          ASSERT_NEAR(cos.at(r, i), c, 2.5 * kEps);
          ASSERT_NEAR(sin.at(r, i), s, 2.5 * kEps);
          for (int64_t h = 0; h < 3; ++h) {
            const double a = before.at(r, h * head_dim + i);
            const double b = before.at(r, h * head_dim + i + half);
            const double bound = 6 * kEps * 1.25 * (std::fabs(a) + std::fabs(b));
            ASSERT_NEAR(x.at(r, h * head_dim + i), a * c - b * s, bound);
            ASSERT_NEAR(x.at(r, h * head_dim + i + half), b * c + a * s, bound);
          }
        }
        for (int64_t h = 0; h < 3; ++h) {
          for (int64_t i = rotary; i < head_dim; ++i) {
            ASSERT_EQ(x.at(r, h * head_dim + i), before.at(r, h * head_dim + i));
          }
        }
      }
      EXPECT_TRUE(x.gaps_untouched());
    }
  }
}

TEST_P(OpsTest, NanStaysInItsElements) {
  for (int64_t rows : {3, 16}) {
    for (DType dtype : kWeightTypes) {
      Matrix x = Matrix::random(rows, 20, 1);
      Weights w({9, 20}, dtype, 3);
      x.at(1, 17) = kNan;
      w.set(4 * 20 + 2, kNan);
      Matrix y(rows, 9);
      ops_->linear(x.rows(), w.view, y.rows());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < 9; ++j) EXPECT_EQ(std::isnan(y.at(r, j)), r == 1 || j == 4);
      }
    }
  }
  Matrix gate = Matrix::random(1, 11, 1);
  Matrix up = Matrix::random(1, 11, 2);
  gate.at(0, 3) = kNan;
  up.at(0, 9) = kNan;
  Matrix y(1, 11);
  ops_->swiglu(gate.rows(), up.rows(), y.rows());
  for (int64_t i = 0; i < 11; ++i) EXPECT_EQ(std::isnan(y.at(0, i)), i == 3 || i == 9);
}

INSTANTIATE_TEST_SUITE_P(Isas, OpsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace millrace::kernels::testing
