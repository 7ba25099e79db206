// Attention that is not causal, over ragged segments (the frames of pictures): against softmax(q k^T) v in f64, and to
// the bit what a causal row gets that stands behind all other positions, in any company, cut, page size and number of
// threads.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/testing/attention_cases.h"

namespace millrace::kernels::testing {
namespace {

struct Segments {
  int64_t heads, head_dim;
  std::vector<int64_t> lengths;
};

// Queries, keys and values of all segments, one behind the other.
class Scene {
 public:
  Scene(const Segments& shape, DType dtype)
      : shape_(shape),
        dtype_(dtype),
        count_(std::accumulate(shape.lengths.begin(), shape.lengths.end(), int64_t{0})),
        q_(Matrix::random(count_, shape.heads * shape.head_dim, 1, 3, 2.0f)),
        k_(Matrix::random(count_, shape.heads * shape.head_dim, 2, 0, 2.0f)),
        v_(Matrix::random(count_, shape.heads * shape.head_dim, 3)) {
    params_.heads = shape.heads;
    params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    params_.causal = false;
  }

  // All segments in one call.
  Matrix together(Ops& ops, int64_t page_size) {
    PagedKv kv(page_size, shape_.heads, shape_.head_dim, shape_.lengths, 7, dtype_);
    const std::vector<AttentionSequence> all = stored(ops, kv);
    Matrix out(count_, q_.width, 5);
    ops.attention(q_.rows(), kv.layer, all, params_, out.rows());
    EXPECT_TRUE(out.gaps_untouched());
    return out;
  }

  // `rows` rows a call, each behind the keys of its segment; causal: one row a sequence.
  Matrix in_tiles(Ops& ops, int64_t page_size, int64_t rows, bool causal) {
    PagedKv kv(page_size, shape_.heads, shape_.head_dim, shape_.lengths, 8, dtype_);
    Matrix out(count_, q_.width);
    AttentionParams params = params_;
    params.causal = causal;
    for (const AttentionSequence& s : stored(ops, kv)) {
      for (int64_t r = 0; r < s.row_count; r += rows) {
        const int64_t n = std::min(rows, s.row_count - r);
        std::vector<AttentionSequence> step;
        if (!causal) step.push_back({s.row_begin + r, n, s.row_count - n, s.pages});
        for (int64_t i = 0; causal && i < n; ++i) step.push_back({s.row_begin + r + i, 1, s.row_count - 1, s.pages});
        ops.attention(q_.rows(), kv.layer, step, params, out.rows());
      }
    }
    return out;
  }

  // See AttentionTest's expect_row for the bound; |v| is below 1.
  void expect_close(Matrix& out) {
    int64_t first = 0;
    for (const int64_t length : shape_.lengths) {
      for (int64_t r = first; r < first + length; ++r) {
        for (int64_t head = 0; head < shape_.heads; ++head) expect_row(out, r, head, first, first + length);
      }
      first += length;
    }
  }

 private:
  std::vector<AttentionSequence> stored(Ops& ops, const PagedKv& kv) {
    std::vector<AttentionSequence> all;
    int64_t first = 0;
    for (std::size_t i = 0; i < shape_.lengths.size(); ++i) {
      all.push_back({first, shape_.lengths[i], 0, kv.tables[i]});
      first += shape_.lengths[i];
    }
    ops.kv_store(kv.layer, all, k_.rows(), v_.rows());
    return all;
  }

  void expect_row(Matrix& out, int64_t r, int64_t head, int64_t first, int64_t end) {
    const int64_t dim = shape_.head_dim, column = head * dim;
    std::vector<double> value(static_cast<std::size_t>(dim), 0.0);
    double sum = 0, score_error = 0;
    for (int64_t j = first; j < end; ++j) {
      double dot = 0, magnitude = 0;
      for (int64_t d = column; d < column + dim; ++d) {
        dot += double{q_.at(r, d)} * k_.at(j, d);
        magnitude += std::fabs(double{q_.at(r, d)} * k_.at(j, d));
      }
      score_error = std::max(score_error, (static_cast<double>(dim) + 2) * 0x1p-24 * magnitude * params_.scale);
      const double weight = std::exp(dot * params_.scale);
      sum += weight;
      for (int64_t d = 0; d < dim; ++d) value[static_cast<std::size_t>(d)] += weight * v_.at(j, column + d);
    }
    const auto length = static_cast<double>(end - first);
    const double bound = 2 * (2 * score_error + (length + 12 * (length / 32 + 2) + 9) * 0x1p-24);
    for (int64_t d = 0; d < dim; ++d) {
      ASSERT_NEAR(out.at(r, column + d), value[static_cast<std::size_t>(d)] / sum, bound) << "row " << r << " " << head;
    }
  }

  Segments shape_;
  DType dtype_;
  int64_t count_;
  AttentionParams params_;
  Matrix q_, k_, v_;
};

class SegmentAttentionTest : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

bool same(Matrix& a, Matrix& b) {
  for (int64_t r = 0; r < a.count; ++r) {
    if (std::memcmp(a.rows().row(r), b.rows().row(r), static_cast<std::size_t>(a.width) * 4) != 0) return false;
  }
  return true;
}

// Segments of one row, below and above a block (64), a range (128), and what one part of the work holds (192 queries).
const Segments kScenes[] = {
    {2, 72, {1, 4, 63, 130}}, {1, 20, {256, 1, 64}}, {3, 64, {65, 3}}, {1, 130, {129, 16}}, {2, 8, {400}}};

class SegmentFormulaTest : public ::testing::TestWithParam<Isa> {};

TEST_P(SegmentFormulaTest, EachRowSeesAllOfItsSegment) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool);
  for (const Segments& shape : kScenes) {
    Scene scene(shape, DType::kF32);
    Matrix out = scene.together(*ops, 16);
    scene.expect_close(out);
  }
}

TEST_P(SegmentAttentionTest, SameBitsAsCausalRowsBehindTheirSegment) {
  ThreadPool alone(1);
  const std::unique_ptr<Ops> single = make_ops(isa(), alone);
  for (const Segments& shape : kScenes) {
    SCOPED_TRACE(fmt::format("heads {} of {}", shape.heads, shape.head_dim));
    Scene scene(shape, dtype());
    Matrix expected = scene.in_tiles(*single, 16, 1, true);
    for (const auto& [threads, page_size, rows] :
         {std::tuple<int, int64_t, int64_t>{1, 64, 500}, {2, 16, 1}, {3, 1, 40}, {4, 64, 7}}) {
      ThreadPool pool(threads);
      const std::unique_ptr<Ops> ops = make_ops(isa(), pool);
      Matrix tiles = scene.in_tiles(*ops, page_size, rows, false);
      ASSERT_TRUE(same(tiles, expected)) << threads << " threads, tiles of " << rows;
      Matrix together = scene.together(*ops, page_size);
      ASSERT_TRUE(same(together, expected)) << threads << " threads, all segments in one call";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SegmentFormulaTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });
INSTANTIATE_TEST_SUITE_P(Isas, SegmentAttentionTest, isas_and_kv_dtypes(), isa_and_dtype);

}  // namespace
}  // namespace millrace::kernels::testing
