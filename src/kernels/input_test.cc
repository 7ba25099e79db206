// What products make of others on the way has the bits of the operation before and the products after it: for weights
// of every kind together, few rows and many, with gaps between the rows, on one thread and on three.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

constexpr int64_t kColumns = 512;

class InputTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    uint64_t seed = 20;
    for (const DType type : {DType::kBF16, DType::kF32, DType::kF16}) {
      plain_.push_back(std::make_unique<Weights>(Shape{71, kColumns}, type, ++seed));
      weights_.push_back(plain_.back()->view);  // as a file holds it
      pack(plain_.back()->view, std::nullopt);
    }
    for (const DType type : {DType::kQ8_0, DType::kQ4_0}) pack(plain_.front()->view, type);
  }
  void pack(const TensorView& view, std::optional<DType> quantize) {
    const Result<Weight> weight = pack_weight(GetParam(), view, pool_, quantize);
    ASSERT_TRUE(weight.ok()) << weight.status().to_string();
    weights_.push_back(*weight);
  }
  // Every weight's product with `input`, accumulated onto the same old values, one behind the other.
  std::vector<Matrix> products(Ops& ops, const Input& input) const {
    std::vector<Matrix> y;
    std::vector<Product> products;
    for (std::size_t i = 0; i < weights_.size(); ++i) y.push_back(Matrix::random(input.x.count, 71, 3 + i, 1));
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      products.push_back({&weights_[i], y[i].rows(), {.accumulate = i % 2 == 0}});
    }
    ops.products(input, products);
    return y;
  }
  void expect_same(const Input& made, const Input& reference, int64_t rows) {
    for (Ops* ops : {one_.get(), three_.get()}) {
      std::vector<Matrix> got = products(*ops, made), wanted = products(*one_, reference);
      for (std::size_t i = 0; i < got.size(); ++i) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t n = 0; n < 71; ++n) {
            const float a = got[i].at(r, n), b = wanted[i].at(r, n);
            ASSERT_EQ(std::memcmp(&a, &b, sizeof a), 0) << "weight " << i << ", row " << r << " of " << rows;
          }
        }
      }
    }
  }

  ThreadPool alone_{1}, pool_{3};
  std::unique_ptr<Ops> one_ = make_ops(GetParam(), alone_), three_ = make_ops(GetParam(), pool_);
  std::vector<std::unique_ptr<Weights>> plain_;
  std::vector<Weight> weights_;
};

TEST_P(InputTest, NormalizedIsRmsNormBefore) {
  for (const int64_t rows : {1, 2, 5, 20, 150, 521}) {
    Matrix x = Matrix::random(rows, kColumns, 1, 3, 4.0f);
    Matrix n(rows, kColumns);
    for (const int64_t group : {kColumns, kColumns / 4}) {
      const Weights norm({group}, DType::kBF16, 2);
      one_->rms_norm(x.rows(), norm.view, 1e-5f, n.rows());
      expect_same(normalized(x.rows(), norm.view, 1e-5f), n.rows(), rows);
    }
  }
}

TEST_P(InputTest, GatedIsSwigluBefore) {
  for (const int64_t rows : {1, 2, 5, 20, 150, 521}) {
    Matrix gate = Matrix::random(rows, kColumns, 1, 3, 4.0f), up = Matrix::random(rows, kColumns, 2, 5, 4.0f);
    Matrix n(rows, kColumns);
    one_->swiglu(gate.rows(), up.rows(), n.rows());
    expect_same(gated(gate.rows(), up.rows()), n.rows(), rows);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, InputTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace millrace::kernels::testing
