// Sequences whose page tables begin alike, as the radix tree makes them: attention may read what they share once for
// all of them, and every row keeps the bits that it has in a step of its own.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/testing/attention_cases.h"

namespace millrace::kernels::testing {
namespace {

struct Case {
  int64_t kv_heads, group, head_dim, window, page_size;
};

// Random sequences over one pool of pages that are full of keys and values: each begins with some pages of an earlier
// one, or with none, and goes on with its own.
class Forest {
 public:
  static constexpr int64_t kPages = 6000;  // of one slot; fewer where they are larger

  Forest(const Case& shape, DType dtype, uint64_t seed)
      : shape_(shape),
        pages_(kPages / shape.page_size + 12),
        kv_(shape.page_size, shape.kv_heads, shape.head_dim, {pages_ * shape.page_size}, seed, dtype) {
    const int64_t tokens = pages_ * shape.page_size;
    Matrix k = Matrix::random(tokens, shape.kv_heads * shape.head_dim, seed + 1, 0, 2.0f);
    Matrix v = Matrix::random(tokens, shape.kv_heads * shape.head_dim, seed + 2);
    ThreadPool pool(1);
    const AttentionSequence all{0, tokens, 0, kv_.tables[0]};
    make_ops(Isa::kRef, pool)->kv_store(kv_.layer, {&all, 1}, k.rows(), v.rows());
    grow(seed);
  }

  // Rows of each sequence, either all in one step or each sequence in a step of its own.
  Matrix run(Ops& ops, bool together) {
    const int64_t rows = batch_.back().row_begin + batch_.back().row_count;
    Matrix q = Matrix::random(rows, shape_.kv_heads * shape_.group * shape_.head_dim, 3, 0, 2.0f);
    Matrix out(rows, q.width);
    const AttentionParams params{.heads = shape_.kv_heads * shape_.group,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                                 .window = shape_.window};
    if (together) {
      ops.attention(q.rows(), kv_.layer, batch_, params, out.rows());
    } else {
      for (const AttentionSequence& one : batch_) ops.attention(q.rows(), kv_.layer, {&one, 1}, params, out.rows());
    }
    return out;
  }

 private:
  void grow(uint64_t seed) {
    constexpr int64_t kRows[] = {1, 1, 1, 1, 2, 5, 16, 40};
    uint64_t turn = 0;
    const auto draw = [&](int64_t below) {
      return static_cast<int64_t>(philox(seed, turn++)[0] % static_cast<uint64_t>(below));
    };
    int64_t next_page = 0;
    int64_t row = 0;
    for (int64_t n = 0; n < 24; ++n) {
      std::vector<int32_t> table;
      if (n > 0 && draw(4) > 0) {
        const std::vector<int32_t>& parent = tables_[static_cast<std::size_t>(draw(n))];
        table.assign(parent.begin(), parent.begin() + draw(static_cast<int64_t>(parent.size()) + 1));
      }
      const auto shared = static_cast<int64_t>(table.size());
      const int64_t fresh = std::min(pages_ - next_page, 1 + draw(600 / shape_.page_size + 1));
      if (fresh == 0) break;
      for (int64_t i = 0; i < fresh; ++i) table.push_back(kv_.tables[0][static_cast<std::size_t>(next_page++)]);
      // The step's own positions lie in pages of its own, as the scheduler sees to.
      const int64_t count = std::min(kRows[draw(8)], fresh * shape_.page_size);
      const int64_t last = (shared + fresh) * shape_.page_size - draw(std::min(shape_.page_size, count) + 1) % count;
      tables_.push_back(std::move(table));
      batch_.push_back({row, count, last - count, {}});
      row += count;
    }
    for (std::size_t i = 0; i < tables_.size(); ++i) batch_[i].pages = tables_[i];
  }

  Case shape_;
  int64_t pages_;
  PagedKv kv_;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<AttentionSequence> batch_;
};

class SharedAttentionTest : public ::testing::TestWithParam<std::tuple<Isa, DType>> {};

TEST_P(SharedAttentionTest, TheBitsOfEachSequenceAlone) {
  const auto [isa, dtype] = GetParam();
  ThreadPool one(1);
  const std::unique_ptr<Ops> alone = make_ops(isa, one);
  uint64_t seed = 1;
  for (const Case& shape : {Case{2, 2, 32, 0, 16}, Case{1, 4, 20, 0, 1}, Case{2, 1, 64, 0, 64}, Case{1, 7, 16, 0, 200},
                            Case{1, 2, 24, 0, 1024}, Case{2, 2, 16, 300, 16}}) {
    for (int round = 0; round < 2; ++round, ++seed) {
      Forest forest(shape, dtype, seed);
      Matrix expected = forest.run(*alone, false);
      for (const int threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        Matrix got = forest.run(*make_ops(isa, pool), true);
        ASSERT_EQ(std::memcmp(got.rows().data, expected.rows().data,
                              static_cast<std::size_t>(expected.count * expected.width) * 4),
                  0)
            << "page " << shape.page_size << " window " << shape.window << " seed " << seed << " threads " << threads;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SharedAttentionTest, isas_and_kv_dtypes(), isa_and_dtype);

}  // namespace
}  // namespace millrace::kernels::testing
