// The promise of ops.h for the row-wise ops: a row computed alone equals, to the bit, the same row in a batch of any
// size, at any place in it, with any number of threads, at any address and stride. (Attention: attention_test.cc.)
#include <gtest/gtest.h>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

struct Way {
  Isa isa;
  Activations activations = Activations::kF32;
};

class BitsTest : public ::testing::TestWithParam<Way> {
 protected:
  BitsTest() {
    for (int threads = 1; threads <= 4; ++threads) {
      pools_.push_back(std::make_unique<ThreadPool>(threads));
      ops_.push_back(make_ops(GetParam().isa, *pools_.back(), GetParam().activations));
    }
  }
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<Ops>> ops_;  // with 1, 2, 3, 4 threads
};

bool same_rows(Matrix& a, int64_t row_a, Matrix& b, int64_t row_b, int64_t count) {
  for (int64_t r = 0; r < count; ++r) {
    if (std::memcmp(a.rows().row(row_a + r), b.rows().row(row_b + r), static_cast<std::size_t>(a.width) * 4) != 0) {
      return false;
    }
  }
  return true;
}

Matrix copy_rows(Matrix& from, int64_t begin, int64_t count, int64_t gap) {
  Matrix to(count, from.width, gap);
  for (int64_t r = 0; r < count; ++r) std::copy_n(from.rows().row(begin + r), from.width, to.rows().row(r));
  return to;
}

// Runs `op(ops, begin, count, gap) -> Matrix` for each row alone, then for cuts of every size, and compares.
template <typename Op>
void expect_same_bits(std::vector<std::unique_ptr<Ops>>& ops, int64_t rows, const std::vector<int64_t>& sizes, Op op) {
  std::vector<Matrix> alone;
  for (int64_t r = 0; r < rows; ++r) alone.push_back(op(*ops[0], r, int64_t{1}, int64_t{0}));
  for (std::size_t t = 0; t < ops.size(); ++t) {
    for (int64_t size : sizes) {
      for (int64_t begin = 0; begin < rows; begin += size) {
        const int64_t count = std::min(size, rows - begin);
        Matrix got = op(*ops[t], begin, count, static_cast<int64_t>(t) * 3);
        for (int64_t r = 0; r < count; ++r) {
          ASSERT_TRUE(same_rows(got, r, alone[static_cast<std::size_t>(begin + r)], 0, 1))
              << t + 1 << " threads, batch of " << count << " from row " << begin << ", row " << r;
        }
      }
    }
  }
}

TEST_P(BitsTest, LinearInEveryBatchSize) {
  const int64_t rows = 37;
  std::vector<int64_t> sizes(37);
  std::iota(sizes.begin(), sizes.end(), 1);
  uint64_t seed = 0;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3, 7}, {33, 20}, {21, 64}}) {
      SCOPED_TRACE(fmt::format("N {} K {} {}", n, k, dtype_name(dtype)));
      Matrix x = Matrix::random(rows, k, ++seed);
      Matrix old = Matrix::random(rows, n, ++seed);
      const Weights w({n, k}, dtype, ++seed, 2);
      const Weights b({n}, DType::kF16, ++seed, 4);
      expect_same_bits(ops_, rows, sizes, [&](Ops& ops, int64_t begin, int64_t count, int64_t gap) {
        Matrix in = copy_rows(x, begin, count, gap);
        Matrix y = copy_rows(old, begin, count, gap / 2);
        ops.linear(in.rows(), w.view, y.rows(), {.bias = b.view, .accumulate = true});
        return y;
      });
    }
  }
}

// Big enough that every way through the code is taken: inline and threaded, direct and blocked, several depth blocks.
TEST_P(BitsTest, LinearAcrossBlocks) {
  if (GetParam().isa == Isa::kRef) GTEST_SKIP() << "the scalar reference has no blocks; its small case runs above";
  const int64_t rows = 150;
  uint64_t seed = 100;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{70, 515}, {97, 1100}, {200, 288}}) {
      SCOPED_TRACE(fmt::format("N {} K {} {}", n, k, dtype_name(dtype)));
      Matrix x = Matrix::random(rows, k, ++seed);
      const Weights w({n, k}, dtype, ++seed, 2);
      expect_same_bits(ops_, rows, {2, 5, 6, 16, 71, 73, 150},
                       [&, n = n](Ops& ops, int64_t begin, int64_t count, int64_t gap) {
                         Matrix in = copy_rows(x, begin, count, gap);
                         Matrix y(count, n, gap);
                         ops.linear(in.rows(), w.view, y.rows());
                         return y;
                       });
    }
  }
}

// Packed for the implementation, weights give what they give as a file holds them. The sizes leave ragged ends: panels
// of one and of two halves, k that is no whole tile; 1100 is beyond a block of k in every order.
TEST_P(BitsTest, LinearOfPackedWeights) {
  uint64_t seed = 200;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {16, 32}, {17, 33}, {70, 515}, {97, 1100}, {40, 0}}) {
      SCOPED_TRACE(fmt::format("N {} K {} {}", n, k, dtype_name(dtype)));
      const Weights w({n, k}, dtype, ++seed, 2);
      const Result<Weight> packed = pack_weight(GetParam().isa, w.view, *pools_[2]);
      ASSERT_TRUE(packed.ok()) << packed.status().to_string();
      Matrix x = Matrix::random(40, k, ++seed);
      for (int64_t rows : {1, 3, 6, 7, 16, 17, 40}) {
        Matrix plain(rows, n), of_packed(rows, n, 1);
        ops_[0]->linear(x.rows().slice(0, rows), w.view, plain.rows());
        ops_[3]->linear(x.rows().slice(0, rows), *packed, of_packed.rows());
        ASSERT_TRUE(same_rows(plain, 0, of_packed, 0, rows)) << rows << " rows";
        EXPECT_TRUE(of_packed.gaps_untouched());
      }
      if (k == 0) continue;
      std::vector<int32_t> ids(static_cast<std::size_t>(n));
      std::iota(ids.begin(), ids.end(), 0);
      Matrix embedded(n, k, 1);
      ops_[1]->embedding(*packed, ids, embedded.rows());
      for (int64_t i = 0; i < n * k; ++i) ASSERT_EQ(embedded.at(i / k, i % k), w.get(i));
    }
  }
}

// A row that overflows or is no number changes no bit of the rows beside it, in the same tile or another.
TEST_P(BitsTest, LinearBesideNanAndInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t rows = 34, k = 70, n = 37;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Weights w({n, k}, dtype, 7, 2);
    Matrix x = Matrix::random(rows, k, 8);
    Matrix clean(rows, n);
    ops_[0]->linear(x.rows(), w.view, clean.rows());
    for (const float bad : {kNan, kInfinity, -kInfinity, std::numeric_limits<float>::max()}) {
      Matrix spoilt = x;
      for (int64_t row : {0, 5, 16, 33}) spoilt.at(row, row) = spoilt.at(row, k - 1) = bad;
      Matrix y(rows, n);
      ops_[1]->linear(spoilt.rows(), w.view, y.rows());
      for (int64_t r = 0; r < rows; ++r) {
        if (r != 0 && r != 5 && r != 16 && r != 33) {
          ASSERT_TRUE(same_rows(y, r, clean, r, 1)) << "row " << r << " beside " << bad;
          continue;
        }
        for (int64_t j = 0; j < n; ++j) {
          const double sum = double{bad} * double{w.get(j * k + r)} + double{bad} * double{w.get(j * k + k - 1)};
          if (std::isinf(bad) && !std::isnan(sum)) {
            EXPECT_EQ(y.at(r, j), sum);
          } else if (!std::isfinite(bad)) {
            EXPECT_TRUE(std::isnan(y.at(r, j)));
          }
        }
      }
    }
  }
}

// The element depends on its own weight row alone: the same row of W at another index and address, in a smaller W.
TEST_P(BitsTest, LinearColumnsAtEveryIndex) {
  const int64_t k = 83;
  Matrix x = Matrix::random(9, k, 1);
  Weights w({41, k}, DType::kBF16, 2);
  Matrix all(9, 41);
  ops_[1]->linear(x.rows(), w.view, all.rows());
  for (int64_t n = 0; n < 41; ++n) {
    for (int64_t count : {1, 2, 4, 5}) {
      if (n + count > 41) continue;
      TensorView part = w.view;
      part.data = static_cast<const char*>(w.view.data) + n * k * 2;
      part.shape = {count, k};
      for (int64_t rows : {1, 2, 9}) {
        Matrix y(rows, count);
        ops_[0]->linear(x.rows().slice(0, rows), part, y.rows());
        for (int64_t r = 0; r < rows; ++r) {
          ASSERT_EQ(std::memcmp(y.rows().row(r), all.rows().row(r) + n, static_cast<std::size_t>(count) * 4), 0);
        }
      }
    }
  }
}

TEST_P(BitsTest, NormSwigluRopeAddInEveryBatchSize) {
  for (const int64_t head : {44, 136}) {  // with whole groups of the norm's lanes and without
    const int64_t rows = 37;
    const int64_t width = 3 * head;
    Matrix x = Matrix::random(rows, width, 1, 0, 4.0f);
    Matrix other = Matrix::random(rows, width, 2, 0, 4.0f);
    const Weights norm({head}, DType::kBF16, 3);
    std::vector<int32_t> positions(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * i * 7);
    const std::vector<float> inv_freq = random_floats(head / 2, 4);
    expect_same_bits(ops_, rows, {2, 3, 8, 16, 37}, [&](Ops& ops, int64_t begin, int64_t count, int64_t gap) {
      Matrix a = copy_rows(x, begin, count, gap);
      Matrix b = copy_rows(other, begin, count, gap + 1);
      Matrix cos(count, head / 2, gap);
      Matrix sin(count, head / 2, gap);
      ops.rms_norm(a.rows(), norm.view, 1e-6f, a.rows());
      ops.rope_table({positions.data() + begin, static_cast<std::size_t>(count)}, inv_freq, 1.0f, cos.rows(),
                     sin.rows());
      ops.rope(a.rows(), head, cos.rows(), sin.rows());
      ops.swiglu(a.rows(), b.rows(), a.rows());
      ops.add(b.rows(), a.rows());
      return a;
    });
  }
}

TEST_P(BitsTest, LayerNormGeluInEveryBatchSize) {
  for (const int64_t width : {44, 136, 1153}) {
    const int64_t rows = 37;
    Matrix x = Matrix::random(rows, width, 1, 0, 4.0f);
    const Weights weight({width}, DType::kBF16, 3), bias({width}, DType::kF32, 4);
    expect_same_bits(ops_, rows, {2, 3, 16, 37}, [&](Ops& ops, int64_t begin, int64_t count, int64_t gap) {
      Matrix a = copy_rows(x, begin, count, gap);
      ops.layer_norm(a.rows(), weight.view, bias.view, 1e-6f, a.rows());
      ops.gelu(a.rows(), true, a.rows());
      ops.gelu(a.rows(), false, a.rows());
      return a;
    });
  }
}

// An element's bits do not depend on where in the vector it stands: a slice of the row gives the same.
TEST_P(BitsTest, SwigluAtEveryOffset) {
  Matrix gate = Matrix::random(1, 40, 1, 0, 20.0f);
  Matrix up = Matrix::random(1, 40, 2);
  Matrix all(1, 40);
  ops_[0]->swiglu(gate.rows(), up.rows(), all.rows());
  for (int64_t begin = 0; begin < 40; ++begin) {
    for (int64_t count = 1; begin + count <= 40; count += 3) {
      Matrix part(1, count);
      ops_[0]->swiglu(gate.rows().columns(begin, count), up.rows().columns(begin, count), part.rows());
      ASSERT_EQ(std::memcmp(part.rows().data, all.rows().data + begin, static_cast<std::size_t>(count) * 4), 0);
    }
  }
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Isa isa : available_isas()) {
    ways.push_back({isa});
    ways.push_back({isa, Activations::kBF16});
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Isas, BitsTest, ::testing::ValuesIn(all_ways()), [](const auto& info) {
  return fmt::format("{}_{}", isa_name(info.param.isa), activations_name(info.param.activations));
});

}  // namespace
}  // namespace millrace::kernels::testing
