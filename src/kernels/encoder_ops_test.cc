// What encoders need beside the language model's ops, layer_norm, gelu and attention that is not causal: against models
// in f64 written here from the formulas, with bounds derived from the order of rounding; and the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

constexpr double kEps = 0x1p-24;  // half a unit in the last place of f32, relative

class EncoderOpsTest : public ::testing::TestWithParam<Isa> {
 protected:
  ThreadPool pool_{2};
  std::unique_ptr<Ops> ops_ = make_ops(GetParam(), pool_);
};

bool same_bits(Matrix& a, Matrix& b) {
  for (int64_t r = 0; r < a.count; ++r) {
    if (std::memcmp(a.rows().row(r), b.rows().row(r), static_cast<std::size_t>(a.width) * 4) != 0) return false;
  }
  return true;
}

// A sum of D elements in at least 8 lanes has D / 8 + 10 additions at most: the mean is off by so many eps times the
// mean of |x|, and every element with it (the variance only by its square). The squares add as many roundings again,
// halved by the root, and ten more follow.
void expect_layer_norm(Matrix& x, const Weights& weight, const Weights& bias, double epsilon, Matrix& y) {
  const auto width = static_cast<double>(x.width);
  for (int64_t r = 0; r < x.count; ++r) {
    double sum = 0, magnitude = 0, squares = 0;
    for (int64_t i = 0; i < x.width; ++i) sum += x.at(r, i), magnitude += std::fabs(x.at(r, i));
    for (int64_t i = 0; i < x.width; ++i) squares += std::pow(x.at(r, i) - sum / width, 2);
    const double root = std::sqrt(squares / width + epsilon);
    const double additions = width / 8 + 10;
    for (int64_t i = 0; i < x.width; ++i) {
      const double scaled = (x.at(r, i) - sum / width) / root * weight.get(i);
      const double of_mean = additions * magnitude / width / root * std::fabs(weight.get(i));
      const double bound = kEps * (of_mean + (additions + 10) * std::fabs(scaled) + std::fabs(scaled + bias.get(i)));
      ASSERT_NEAR(y.at(r, i), scaled + bias.get(i), bound) << "row " << r << " element " << i;
    }
  }
}

TEST_P(EncoderOpsTest, LayerNormOverOddWidths) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t width : {1, 2, 7, 8, 20, 64, 72, 100, 137, 1152}) {
      SCOPED_TRACE(fmt::format("width {} {}", width, dtype_name(dtype)));
      Matrix x = Matrix::random(5, width, 1, 2, 3.0f);
      for (int64_t i = 0; i < width; ++i) x.at(1, i) += 100.0f;  // the mean is far greater than what varies
      const Weights weight({width}, dtype, 2, 2), bias({width}, dtype, 3, 6);
      Matrix y(5, width, 1);
      ops_->layer_norm(x.rows(), weight.view, bias.view, 1e-6f, y.rows());
      expect_layer_norm(x, weight, bias, double{1e-6f}, y);
      EXPECT_TRUE(y.gaps_untouched());
      ops_->layer_norm(x.rows(), weight.view, bias.view, 1e-6f, x.rows());  // in place: the same
      EXPECT_TRUE(same_bits(x, y));
    }
  }
}

TEST_P(EncoderOpsTest, LayerNormOfEqualElementsIsTheBias) {
  Matrix x(2, 64), y(2, 64);  // sums of 64 equal powers of two are exact
  const Weights weight({64}, DType::kF32, 1), bias({64}, DType::kF32, 2);
  for (int64_t i = 0; i < 64; ++i) x.at(0, i) = 0.0f, x.at(1, i) = -4.0f;
  ops_->layer_norm(x.rows(), weight.view, bias.view, 1e-6f, y.rows());
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(y.at(0, i), bias.get(i));
    EXPECT_EQ(y.at(1, i), bias.get(i));
  }
}

Matrix sweep(float from, float to, int64_t count) {
  Matrix x(1, count);
  for (int64_t i = 0; i < count; ++i) {
    x.at(0, i) = from + (to - from) * static_cast<float>(i) / static_cast<float>(count);
  }
  return x;
}

// tanh: u has six roundings, which exp(-2 u) multiplies by 2 |u|; an exp of 4 eps, an addition and a division follow.
// erf: the approximation's 1.5e-7 and some 24 roundings of numbers up to 1, all halved. 1e-15 is that of f64 here.
TEST_P(EncoderOpsTest, GeluFromEndToEnd) {
  for (const float range : {0.01f, 2.0f, 12.0f, 300.0f}) {
    Matrix x = sweep(-range, range, 20011);
    for (const bool tanh : {true, false}) {
      Matrix y(1, x.width, 3);
      ops_->gelu(x.rows(), tanh, y.rows());
      for (int64_t i = 0; i < x.width; ++i) {
        const double v = x.at(0, i);
        const double u = std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (v + 0.044715 * v * v * v);
        const double wanted = 0.5 * v * (1 + (tanh ? std::tanh(u) : std::erf(v / std::numbers::sqrt2)));
        const double bound = tanh ? (12 * std::fabs(u) + 7) * kEps * std::fabs(wanted) + 1e-15 * std::fabs(v) + 1e-36
                                  : std::fabs(v) * (0.75e-7 + 12 * kEps);
        ASSERT_NEAR(y.at(0, i), wanted, bound) << (tanh ? "tanh " : "erf ") << v;
      }
      EXPECT_TRUE(y.gaps_untouched());
      Matrix same = x;
      ops_->gelu(same.rows(), tanh, same.rows());
      EXPECT_TRUE(same_bits(same, y));
    }
  }
}

TEST_P(EncoderOpsTest, GeluOfWhatIsNoOrdinaryNumber) {
  constexpr float kGreatest = std::numeric_limits<float>::max(), kInfinity = std::numeric_limits<float>::infinity();
  Matrix x(1, 6), y(1, 6);
  const float values[] = {kNan, kInfinity, kGreatest, 0.0f, 1e-38f, -1e20f};
  std::copy_n(values, 6, x.rows().row(0));
  for (const bool tanh : {true, false}) {
    ops_->gelu(x.rows(), tanh, y.rows());
    EXPECT_TRUE(std::isnan(y.at(0, 0)));
    EXPECT_EQ(y.at(0, 1), kInfinity);
    EXPECT_EQ(y.at(0, 2), kGreatest);
    EXPECT_EQ(y.at(0, 3), 0.0f);
    EXPECT_NEAR(y.at(0, 4), 0.5e-38f, 1e-44);
    EXPECT_NEAR(y.at(0, 5), 0.0f, 1e-15);
  }
}

TEST_P(EncoderOpsTest, NanStaysInItsRowOrElement) {
  Matrix x = Matrix::random(3, 21, 1), y(3, 21);
  x.at(1, 20) = kNan;
  const Weights weight({21}, DType::kBF16, 2), bias({21}, DType::kBF16, 3);
  ops_->layer_norm(x.rows(), weight.view, bias.view, 1e-6f, y.rows());
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(std::isnan(y.at(r, i)), r == 1);
  }
  ops_->gelu(x.rows(), true, y.rows());
  for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(std::isnan(y.at(1, i)), i == 20);
}

INSTANTIATE_TEST_SUITE_P(Isas, EncoderOpsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace millrace::kernels::testing
