// What vocoders need beside the other ops, add_scaled, snake and depthwise: against formulas in f64, with bounds
// derived from the order of rounding; products whose input rows overlap; and the same bits.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

constexpr double kHalfUlp = 0x1p-24;  // of f32, relative

class VocoderOpsTest : public ::testing::TestWithParam<Isa> {
 protected:
  ThreadPool pool_{2};
  std::unique_ptr<Ops> ops_ = make_ops(GetParam(), pool_);
};

bool equal_bits(Matrix& a, Matrix& b) {
  for (int64_t r = 0; r < a.count; ++r) {
    if (std::memcmp(a.rows().row(r), b.rows().row(r), static_cast<std::size_t>(a.width) * 4) != 0) return false;
  }
  return true;
}

TEST_P(VocoderOpsTest, AddScaled) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t width : {1, 7, 8, 33, 96}) {
      const Weights scale({width}, dtype, 2, 2);
      Matrix x = Matrix::random(5, width, 1, 2), y = Matrix::random(5, width, 3, 1);
      Matrix before = y;
      ops_->add_scaled(x.rows(), scale.view, y.rows());
      for (int64_t r = 0; r < 5; ++r) {
        for (int64_t i = 0; i < width; ++i) {
          const double product = double{x.at(r, i)} * scale.get(i), wanted = before.at(r, i) + product;
          ASSERT_NEAR(y.at(r, i), wanted, kHalfUlp * (std::fabs(product) + 2 * std::fabs(wanted)));
        }
      }
      EXPECT_TRUE(y.gaps_untouched());
    }
  }
}

// The angle is rounded once (half an ulp of it turns the square of the sine by as much), its reduction costs less, and
// the series, the square and what follows some ten roundings of numbers up to 1.
TEST_P(VocoderOpsTest, SnakeFromSmallAnglesToTheBound) {
  for (const float range : {0.001f, 3.0f, 40.0f, 1000.0f, 8000.0f}) {
    constexpr int64_t kCount = 20011;
    Matrix x(1, kCount), y(1, kCount, 3);
    const Weights magnitude({kCount}, DType::kF32, 4);
    Weights frequency({kCount}, DType::kF32, 5);
    for (int64_t i = 0; i < kCount; ++i) {
      x.at(0, i) = range * (2 * static_cast<float>(i) / static_cast<float>(kCount) - 1);
      frequency.set(i, 0.5f + 0.5f * std::fabs(frequency.get(i)));
    }
    ops_->snake(x.rows(), frequency.view, magnitude.view, y.rows());
    for (int64_t i = 0; i < kCount; ++i) {
      const double v = x.at(0, i), angle = v * frequency.get(i), sine = std::sin(angle);
      const double wanted = v + magnitude.get(i) * sine * sine;
      const double bound = kHalfUlp * (std::fabs(magnitude.get(i)) * (3 * std::fabs(angle) + 12) + std::fabs(wanted));
      ASSERT_NEAR(y.at(0, i), wanted, bound) << v << " times " << frequency.get(i);
    }
    EXPECT_TRUE(y.gaps_untouched());
    ops_->snake(x.rows(), frequency.view, magnitude.view, x.rows());  // in place: the same
    EXPECT_TRUE(equal_bits(x, y));
  }
}

TEST_P(VocoderOpsTest, SnakeOfWhatIsNoOrdinaryNumber) {
  Matrix x(1, 5), y(1, 5);
  const float values[] = {kNan, 1e30f, -1e30f, 0.0f, 20000.0f};
  std::copy_n(values, 5, x.rows().row(0));
  Weights one({5}, DType::kF32, 1);
  for (int64_t i = 0; i < 5; ++i) one.set(i, 1.0f);
  ops_->snake(x.rows(), one.view, one.view, y.rows());
  EXPECT_TRUE(std::isnan(y.at(0, 0)));
  EXPECT_EQ(y.at(0, 1), 1e30f);
  EXPECT_EQ(y.at(0, 2), -1e30f);
  EXPECT_EQ(y.at(0, 3), 0.0f);
  EXPECT_GE(y.at(0, 4), 20000.0f);
  EXPECT_LE(y.at(0, 4), 20001.0f);
}

TEST_P(VocoderOpsTest, DepthwiseOverOddWidths) {
  constexpr int64_t kTaps = 7;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const int64_t width : {1, 7, 8, 20, 33, 137}) {
      const Weights weight({kTaps, width}, dtype, 2, 2), bias({width}, dtype, 3);
      Matrix x = Matrix::random(9 + kTaps - 1, width, 1, 2), y(9, width, 1);
      ops_->depthwise(x.rows(), weight.view, bias.view, y.rows());
      for (int64_t t = 0; t < 9; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          double wanted = bias.get(i), magnitude = std::fabs(bias.get(i));
          for (int64_t k = 0; k < kTaps; ++k) {
            const double product = double{x.at(t + k, i)} * weight.get(k * width + i);
            wanted += product, magnitude += std::fabs(product);
          }
          ASSERT_NEAR(y.at(t, i), wanted, (kTaps + 2) * kHalfUlp * magnitude);
        }
      }
      EXPECT_TRUE(y.gaps_untouched());
      Matrix last(1, width);  // a row alone: the same bits
      ops_->depthwise(x.rows().slice(8, kTaps), weight.view, bias.view, last.rows());
      EXPECT_EQ(std::memcmp(last.rows().row(0), y.rows().row(8), static_cast<std::size_t>(width) * 4), 0);
    }
  }
}

// Windows of 5 rows that lie in one another, against the same rows apart: plain, packed and quantized weights.
TEST_P(VocoderOpsTest, ProductsOfOverlappingRows) {
  constexpr int64_t kChannels = 32, kTaps = 5, kRows = 70, kOut = 41;
  Matrix x = Matrix::random(kRows + kTaps - 1, kChannels, 1);
  Matrix apart(kRows, kTaps * kChannels, 3);
  for (int64_t r = 0; r < kRows; ++r) std::copy_n(x.rows().row(r), apart.width, apart.rows().row(r));
  const ConstRows windows(x.rows().row(0), kRows, kTaps * kChannels, kChannels);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Weights weight({kOut, kTaps * kChannels}, dtype, 2);
    for (const std::optional<DType> quantize : {std::optional<DType>(), std::optional<DType>(DType::kQ8_0)}) {
      const auto packed = pack_weight(GetParam(), weight.view, pool_, quantize);
      ASSERT_TRUE(packed.ok());
      for (const Weight& one : {Weight(weight.view), *packed}) {
        Matrix seen(kRows, kOut, 1), wanted(kRows, kOut, 1);
        ops_->linear(windows, one, seen.rows());
        ops_->linear(apart.rows(), one, wanted.rows());
        EXPECT_TRUE(equal_bits(seen, wanted));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, VocoderOpsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace millrace::kernels::testing
