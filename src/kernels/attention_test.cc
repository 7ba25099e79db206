// Paged attention against a two-pass softmax in f64, over ragged batches and every KV dtype; and the promise of the
// same bits for it. The formula is fed the keys and values as they are stored, rounded: those of rows that are computed
// in the same step too.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/testing/attention_cases.h"

namespace millrace::kernels::testing {
namespace {

constexpr double kEps = 0x1p-24;

// A row of one token and head as a page of this dtype holds it.
std::vector<double> stored(DType dtype, const float* row, int64_t dim) {
  std::vector<double> out(row, row + dim);
  double largest = 0;
  for (const double x : out) largest = std::max(largest, std::fabs(x));
  const float scale = static_cast<float>(largest) / 127.0f;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (dtype == DType::kF16) out[i] = f16_to_f32(f32_to_f16(row[i]));
    if (dtype == DType::kBF16) out[i] = bf16_to_f32(f32_to_bf16(row[i]));
    if (dtype == DType::kI8) out[i] = double{std::nearbyint(row[i] / scale)} * scale;
  }
  return out;
}

struct Case {
  int64_t kv_heads, group, head_dim, window;
};

// The tokens' q, k, v for all positions of all requests, and the kernel run over any cut into steps.
class Scene {
 public:
  Scene(const Case& shape, std::vector<int64_t> lengths, uint64_t seed, DType dtype)
      : shape_(shape), dtype_(dtype), lengths_(std::move(lengths)) {
    const int64_t heads = shape.kv_heads * shape.group;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      q_.push_back(Matrix::random(lengths_[i], heads * shape.head_dim, seed + 10 * i, 0, 2.0f));
      k_.push_back(Matrix::random(lengths_[i], shape.kv_heads * shape.head_dim, seed + 10 * i + 1, 0, 2.0f));
      v_.push_back(Matrix::random(lengths_[i], shape.kv_heads * shape.head_dim, seed + 10 * i + 2));
      out_.emplace_back(lengths_[i], heads * shape.head_dim);
    }
    params_.heads = heads;
    params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    params_.window = shape.window;
  }

  // Runs every request from its first token to its last. In step t request i takes chunk(i, t) rows, none once it
  // is done; the rows of a step are laid out with gaps and the requests in turning order.
  template <typename Chunk>
  void run(Ops& ops, int64_t page_size, Chunk chunk) {
    PagedKv kv(page_size, shape_.kv_heads, shape_.head_dim, lengths_, 77, dtype_);
    std::vector<int64_t> done(lengths_.size(), 0);
    for (int64_t step = 0;; ++step) {
      std::vector<AttentionSequence> batch;
      std::vector<std::size_t> who;
      bool all_done = true;
      int64_t rows = 1;  // row 0 belongs to no sequence
      for (std::size_t n = 0; n < lengths_.size(); ++n) {
        const std::size_t i = (n + static_cast<std::size_t>(step)) % lengths_.size();
        const int64_t count = std::min<int64_t>(lengths_[i] - done[i], chunk(static_cast<int64_t>(i), step));
        all_done = all_done && done[i] == lengths_[i];
        if (count == 0) continue;
        batch.push_back({rows, count, done[i], kv.tables[i]});
        who.push_back(i);
        rows += count + 1;
      }
      if (all_done) return;
      run_step(ops, kv.layer, batch, who, rows);
      for (std::size_t b = 0; b < batch.size(); ++b) done[who[b]] += batch[b].row_count;
    }
  }

  Matrix& out(std::size_t i) { return out_[i]; }

  void expect_close() {
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      stored_k_ = stored_rows(k_[i]);
      stored_v_ = stored_rows(v_[i]);
      for (int64_t p = 0; p < lengths_[i]; ++p) {
        for (int64_t h = 0; h < params_.heads; ++h) expect_row(i, p, h);
      }
    }
  }

 private:
  // [kv head][position] -> the row as it is stored
  std::vector<std::vector<std::vector<double>>> stored_rows(Matrix& m) const {
    std::vector<std::vector<std::vector<double>>> heads(static_cast<std::size_t>(shape_.kv_heads));
    for (std::size_t h = 0; h < heads.size(); ++h) {
      for (int64_t p = 0; p < m.count; ++p) {
        const float* row = m.rows().row(p) + static_cast<int64_t>(h) * shape_.head_dim;
        heads[h].push_back(stored(dtype_, row, shape_.head_dim));
      }
    }
    return heads;
  }

  void run_step(Ops& ops, const KvLayer& layer, const std::vector<AttentionSequence>& batch,
                const std::vector<std::size_t>& who, int64_t rows) {
    Matrix q(rows, params_.heads * shape_.head_dim, 2);
    Matrix k(rows, shape_.kv_heads * shape_.head_dim, 1);
    Matrix v(rows, shape_.kv_heads * shape_.head_dim, 3);
    Matrix out(rows, params_.heads * shape_.head_dim, 5);
    const auto copy = [&](Matrix& from, Matrix& to, const AttentionSequence& s, bool back) {
      for (int64_t r = 0; r < s.row_count; ++r) {
        float* a = from.rows().row(s.kv_length_before + r);
        float* b = to.rows().row(s.row_begin + r);
        std::copy_n(back ? b : a, from.width, back ? a : b);
      }
    };
    for (std::size_t b = 0; b < batch.size(); ++b) {
      copy(q_[who[b]], q, batch[b], false);
      copy(k_[who[b]], k, batch[b], false);
      copy(v_[who[b]], v, batch[b], false);
    }
    ops.kv_store(layer, batch, k.rows(), v.rows());
    ops.attention(q.rows(), layer, batch, params_, out.rows());
    for (std::size_t b = 0; b < batch.size(); ++b) copy(out_[who[b]], out, batch[b], true);
    ASSERT_TRUE(out.gaps_untouched());
    for (int64_t i = 0; i < out.width; ++i) ASSERT_TRUE(std::isnan(out.at(0, i)));  // the row of no sequence
  }

  // A score's error is d = (D + 2) eps * sum |q k| * scale; it enters each probability as exp(2 d) at most, since the
  // maximum carries it too. Each of L/64 + 1 blocks, and each of the fewer ranges, rescales sum and accumulator (4
  // roundings and an exp of 4 eps), and at most L values are added: relative to max |v| that is 2 d + (L + 12 (L/32 +
  // 2) + 9) eps, twice for numerator and denominator. (One eps in each is that of the int8 scale.)
  void expect_row(std::size_t i, int64_t p, int64_t h) {
    const int64_t dim = shape_.head_dim;
    const auto kv = static_cast<std::size_t>(h / shape_.group);
    const int64_t first = shape_.window > 0 ? std::max<int64_t>(0, p - shape_.window + 1) : 0;
    std::vector<double> scores;
    double top = -1e300;
    double score_error = 0;
    for (int64_t j = first; j <= p; ++j) {
      double dot = 0;
      double magnitude = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double term = double{q_[i].at(p, h * dim + d)} * stored_k_[kv][at(j)][at(d)];
        dot += term;
        magnitude += std::fabs(term);
      }
      scores.push_back(dot * params_.scale);
      top = std::max(top, scores.back());
      score_error = std::max(score_error, (static_cast<double>(dim) + 2) * kEps * magnitude * params_.scale);
    }
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s - top);
    const double length = static_cast<double>(p + 1 - first);
    const double bound = 2 * (2 * score_error + (length + 12 * (length / 32 + 2) + 9) * kEps);  // max |v| is below 1
    for (int64_t d = 0; d < dim; ++d) {
      double value = 0;
      for (int64_t j = first; j <= p; ++j) value += scores[at(j - first)] * stored_v_[kv][at(j)][at(d)];
      ASSERT_NEAR(out_[i].at(p, h * dim + d), value / sum, bound)
          << "request " << i << " position " << p << " head " << h;
    }
  }

  static std::size_t at(int64_t i) { return static_cast<std::size_t>(i); }

  Case shape_;
  DType dtype_;
  std::vector<int64_t> lengths_;
  AttentionParams params_;
  std::vector<Matrix> q_, k_, v_, out_;
  std::vector<std::vector<std::vector<double>>> stored_k_, stored_v_;
};

class AttentionTest : public ::testing::TestWithParam<std::tuple<Isa, DType>> {
 protected:
  Isa isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

const Case kCases[] = {
    {1, 1, 8, 0},   {3, 1, 6, 0},   {2, 2, 16, 0},  {1, 4, 20, 0}, {2, 8, 32, 0}, {1, 5, 36, 0},  {2, 3, 64, 0},
    {1, 2, 96, 0},  {1, 2, 128, 0}, {1, 1, 256, 0}, {2, 2, 16, 1}, {2, 2, 16, 5}, {1, 2, 80, 0},  {2, 3, 80, 45},
    {1, 4, 20, 31}, {2, 1, 8, 33},  {1, 2, 64, 40}, {1, 1, 2, 0},  {1, 40, 8, 0}, {1, 2, 130, 0},
};

TEST_P(AttentionTest, CloseToTheFormula) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_ops(isa(), pool);
  for (const Case& shape : kCases) {
    SCOPED_TRACE(fmt::format("kv heads {} group {} dim {} window {}", shape.kv_heads, shape.group, shape.head_dim,
                             shape.window));
    Scene scene(shape, {1, 33, 70}, 5, dtype());
    scene.run(*ops, 16, [](int64_t, int64_t step) { return step == 0 ? 31 : 13; });
    scene.expect_close();
  }
}

// The reference is one request at a time, one thread, whole prefill in one step, pages of 16. Then: decode only, chunks
// of every kind, three requests in one batch, pages of 1 and 64, one to four threads. All rows to the bit.
TEST_P(AttentionTest, SameBitsForAnyChunksBatchPagesAndThreads) {
  ThreadPool alone(1);
  const std::unique_ptr<Ops> single = make_ops(isa(), alone);
  for (const Case& shape : {Case{2, 2, 20, 0}, Case{1, 4, 64, 0}, Case{2, 1, 8, 37}, Case{1, 3, 36, 9}}) {
    const std::vector<int64_t> lengths = {40, 1, 77, 33};
    Scene expected(shape, lengths, 9, dtype());
    // Request i takes all its rows in step i, alone.
    expected.run(*single, 16, [](int64_t request, int64_t step) { return request == step ? 1000 : 0; });
    for (const auto& [threads, page_size] :
         {std::pair<int, int64_t>{1, 1}, {1, 64}, {2, 16}, {3, 64}, {4, 1}, {4, 16}}) {
      ThreadPool pool(threads);
      const std::unique_ptr<Ops> ops = make_ops(isa(), pool);
      for (int64_t plan = 0; plan < 5; ++plan) {
        SCOPED_TRACE(fmt::format("dim {} window {} threads {} page {} plan {}", shape.head_dim, shape.window, threads,
                                 page_size, plan));
        Scene scene(shape, lengths, 9, dtype());
        scene.run(*ops, page_size, [&](int64_t request, int64_t step) -> int64_t {
          switch (plan) {
            case 0:
              return 1;  // decode from the first token on
            case 1:
              return 7;
            case 2:
              return 32;
            case 3:
              return 1 + philox(3, static_cast<uint64_t>(request * 1000 + step))[0] % 40;
            default:
              return step == 0 ? 39 : 1;  // prefill, then decode
          }
        });
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          ASSERT_EQ(std::memcmp(scene.out(i).rows().data, expected.out(i).rows().data,
                                static_cast<std::size_t>(lengths[i] * expected.out(i).width) * 4),
                    0)
              << "request " << i;
        }
      }
    }
  }
}

// The last rows of a sequence that spans many blocks and ranges, several of its rows with sums of their own: all in one
// step, in steps of every size down to decode, and shared among threads. Decode rows find the two-pass formula too.
class LongSequence {
 public:
  static constexpr int64_t kLength = 5000;
  static constexpr int64_t kRows = 60;  // the last ones
  LongSequence(const Case& shape, DType dtype)
      : shape_(shape),
        dtype_(dtype),
        k_(Matrix::random(kLength, shape.kv_heads * shape.head_dim, 1, 0, 2.0f)),
        v_(Matrix::random(kLength, shape.kv_heads * shape.head_dim, 2)),
        q_(Matrix::random(kRows, shape.kv_heads * shape.group * shape.head_dim, 3, 0, 2.0f)) {
    params_.heads = shape.kv_heads * shape.group;
    params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    params_.window = shape.window;
  }

  Matrix run(Isa isa, int threads, int64_t page_size, int64_t rows_a_step) {
    ThreadPool pool(threads);
    const std::unique_ptr<Ops> ops = make_ops(isa, pool);
    PagedKv kv(page_size, shape_.kv_heads, shape_.head_dim, {kLength + 40}, 5, dtype_);  // 40 more that hold NaN
    const AttentionSequence all{0, kLength, 0, kv.tables[0]};
    ops->kv_store(kv.layer, {&all, 1}, k_.rows(), v_.rows());
    Matrix out(kRows, q_.width);
    for (int64_t row = 0; row < kRows; row += rows_a_step) {
      const AttentionSequence step{row, std::min(rows_a_step, kRows - row), kLength - kRows + row, kv.tables[0]};
      ops->attention(q_.rows(), kv.layer, {&step, 1}, params_, out.rows());
    }
    return out;
  }

  // Row `row` of head 0, in f64.
  std::vector<double> formula(int64_t row) {
    const int64_t p = kLength - kRows + row;
    const int64_t dim = shape_.head_dim;
    const int64_t first = shape_.window > 0 ? p - shape_.window + 1 : 0;
    std::vector<double> value(static_cast<std::size_t>(dim), 0.0);
    double sum = 0;
    for (int64_t j = first; j <= p; ++j) {
      const std::vector<double> key = stored(dtype_, k_.rows().row(j), dim);
      const std::vector<double> one = stored(dtype_, v_.rows().row(j), dim);
      double dot = 0;
      for (std::size_t d = 0; d < key.size(); ++d) dot += double{q_.rows().row(row)[d]} * key[d];
      const double weight = std::exp(dot * params_.scale);
      sum += weight;
      for (std::size_t d = 0; d < key.size(); ++d) value[d] += weight * one[d];
    }
    for (double& x : value) x /= sum;
    return value;
  }

 private:
  Case shape_;
  DType dtype_;
  AttentionParams params_;
  Matrix k_, v_, q_;
};

TEST_P(AttentionTest, LongSequencesInAnyCutAndWithTheFormula) {
  for (const Case& shape : {Case{1, 2, 64, 0}, Case{1, 1, 80, 0}, Case{1, 4, 128, 1500}, Case{1, 3, 36, 513}}) {
    SCOPED_TRACE(fmt::format("group {} dim {} window {}", shape.group, shape.head_dim, shape.window));
    LongSequence sequence(shape, dtype());
    Matrix expected = sequence.run(isa(), 1, 16, LongSequence::kRows);
    for (const int64_t row : {int64_t{0}, LongSequence::kRows - 1}) {
      const std::vector<double> wanted = sequence.formula(row);
      for (std::size_t d = 0; d < wanted.size(); ++d) {
        // |q k| * scale is at most 4 sqrt(D), so a score's error is below (D + 2) eps * 45 and a probability's twice
        // that; what remains is that of 5000 additions. See expect_row.
        const double bound = 4 * (static_cast<double>(shape.head_dim) + 2) * kEps * 45 + 2 * 7000 * kEps;
        ASSERT_NEAR(expected.rows().row(row)[d], wanted[d], bound) << row << " " << d;
      }
    }
    if (isa() == Isa::kRef) continue;  // its one way through the code was compared above
    for (const auto& [threads, page_size, rows] :
         {std::tuple<int, int64_t, int64_t>{1, 16, 1}, {3, 64, 1}, {2, 1, 5}, {2, 16, 13}, {4, 128, 40}}) {
      Matrix got = sequence.run(isa(), threads, page_size, rows);
      ASSERT_EQ(std::memcmp(got.rows().data, expected.rows().data,
                            static_cast<std::size_t>(expected.count * expected.width) * 4),
                0)
          << threads << " threads, pages of " << page_size << ", " << rows << " rows a step";
    }
  }
}

// Pages that a sliding window has left behind may be gone: their ids are never looked at.
TEST_P(AttentionTest, WindowNeedsNoOldPages) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_ops(isa(), pool);
  PagedKv kv(4, 1, 8, {50}, 1, dtype());
  Matrix k = Matrix::random(50, 8, 2);
  Matrix v = Matrix::random(50, 8, 3);
  Matrix q = Matrix::random(1, 8, 4);
  const AttentionSequence all{0, 50, 0, kv.tables[0]};
  ops->kv_store(kv.layer, {&all, 1}, k.rows(), v.rows());
  const AttentionParams params{.heads = 1, .scale = 0.5f, .window = 6};
  const auto last_row = [&] {
    Matrix out(1, 8);
    const AttentionSequence one{0, 1, 49, kv.tables[0]};
    ops->attention(q.rows(), kv.layer, {&one, 1}, params, out.rows());
    return out;
  };
  Matrix before = last_row();
  for (std::size_t page = 0; page < 11; ++page) kv.tables[0][page] = -1;  // positions 0 .. 43; 44 is the oldest seen
  Matrix after = last_row();
  EXPECT_EQ(std::memcmp(before.rows().data, after.rows().data, 32), 0);
  EXPECT_FALSE(std::isnan(before.at(0, 0)));
}

TEST_P(AttentionTest, NanInOneHeadStaysInIt) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_ops(isa(), pool);
  PagedKv kv(16, 2, 8, {20, 20}, 1, dtype());
  Matrix k = Matrix::random(40, 16, 2);
  Matrix v = Matrix::random(40, 16, 3);
  Matrix q = Matrix::random(40, 32, 4);
  q.at(5, 8) = kNan;    // request 0, position 5, head 1
  k.at(27, 15) = kNan;  // request 1, position 7, kv head 1 = heads 2 and 3
  const std::vector<AttentionSequence> batch = {{0, 20, 0, kv.tables[0]}, {20, 20, 0, kv.tables[1]}};
  Matrix out(40, 32);
  ops->kv_store(kv.layer, batch, k.rows(), v.rows());
  ops->attention(q.rows(), kv.layer, batch, {.heads = 4, .scale = 1.0f}, out.rows());
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t i = 0; i < 32; ++i) {
      const bool expected = (r == 5 && i / 8 == 1) || (r >= 27 && i / 8 >= 2);
      ASSERT_EQ(std::isnan(out.at(r, i)), expected) << r << " " << i;
    }
  }
}

// A NaN or an infinity among the values shows in the outputs that read it: in its own element, but in the whole head
// with int8, whose scale it spoils.
TEST_P(AttentionTest, BadValuesShow) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_ops(isa(), pool);
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    PagedKv kv(4, 2, 8, {9}, 1, dtype());
    Matrix k = Matrix::random(9, 16, 2);
    Matrix v = Matrix::random(9, 16, 3);
    Matrix q = Matrix::random(9, 16, 4);
    v.at(6, 11) = bad;  // kv head 1
    const AttentionSequence all{0, 9, 0, kv.tables[0]};
    Matrix out(9, 16);
    ops->kv_store(kv.layer, {&all, 1}, k.rows(), v.rows());
    ops->attention(q.rows(), kv.layer, {&all, 1}, {.heads = 2, .scale = 1.0f}, out.rows());
    for (int64_t r = 0; r < 9; ++r) {
      for (int64_t i = 0; i < 16; ++i) {
        const bool reads = r >= 6 && (dtype() == DType::kI8 ? i >= 8 : i == 11);
        ASSERT_EQ(std::isfinite(out.at(r, i)), !reads) << r << " " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest, isas_and_kv_dtypes(), isa_and_dtype);

}  // namespace
}  // namespace millrace::kernels::testing
