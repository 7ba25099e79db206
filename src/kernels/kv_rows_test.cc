// What kv_store leaves in the pages of each dtype: to the bit what the oracle computes
// (tests/oracles/kernels_kv_rows.py: ties, subnormals, overflow, zeros, NaN and infinities among the rows), at the
// address that ops.h defines, and nothing anywhere else; the same bytes in every implementation, however the rows are
// cut into batches and threads.
#include "kernels/kv_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

constexpr int64_t kWidth = 16;  // of the oracle's rows
constexpr int64_t kHeads = 3;
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};

struct GoldenRow {
  uint32_t x[kWidth];
  uint32_t f16[kWidth], bf16[kWidth];
  uint32_t scale;
  int i8[kWidth];
};

std::vector<GoldenRow> golden_rows() {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/kernels/kv_rows.txt");
  std::vector<GoldenRow> rows;
  const auto read_hex = [&](uint32_t* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) file >> std::hex >> to[i];
  };
  for (GoldenRow row; read_hex(row.x, kWidth), file;) {
    read_hex(row.f16, kWidth);
    read_hex(row.bf16, kWidth);
    read_hex(&row.scale, 1);
    for (int& value : row.i8) file >> std::dec >> value;
    rows.push_back(row);
  }
  return rows;
}

// Rows of kHeads heads: head h of token t is the oracle's row first + t * kHeads + h, round and round.
const GoldenRow& golden_of(const std::vector<GoldenRow>& golden, std::size_t first, int64_t token, int64_t head) {
  return golden[(first + static_cast<std::size_t>(token * kHeads + head)) % golden.size()];
}

Matrix tokens_of(const std::vector<GoldenRow>& golden, std::size_t first, int64_t count) {
  Matrix m(count, kHeads * kWidth, 5);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      std::memcpy(m.rows().row(t) + h * kWidth, golden_of(golden, first, t, h).x, sizeof(GoldenRow::x));
    }
  }
  return m;
}

// Takes what lies at `at` and leaves the poison there, so that in the end nothing else may be left.
template <typename T>
T take(std::vector<char>& bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  std::memset(bytes.data() + at, 0xff, sizeof value);
  return value;
}

// Words of one float type; `infinity` is its positive one.
bool same_or_both_nan(uint32_t seen, uint32_t wanted, uint32_t infinity) {
  const uint32_t magnitude = infinity > 0xffff ? 0x7fffffff : 0x7fff;
  return seen == wanted || ((seen & magnitude) > infinity && (wanted & magnitude) > infinity);
}

// One token's head, taken out of the bytes by the layout that ops.h states.
void expect_row(const KvLayer& kv, std::vector<char>& bytes, int64_t page, int64_t head, int64_t slot,
                const GoldenRow& wanted) {
  const int64_t element = static_cast<int64_t>(dtype_size(kv.dtype));
  const int64_t run = kv.page_size * (kWidth * element + (kv.dtype == DType::kI8 ? 4 : 0));
  const int64_t begin = page * kv.page_stride_bytes + head * run;
  for (int64_t i = 0; i < kWidth; ++i) {
    const int64_t at = begin + (slot * kWidth + i) * element;
    switch (kv.dtype) {
      case DType::kF16:
        ASSERT_TRUE(same_or_both_nan(take<uint16_t>(bytes, at), wanted.f16[i], 0x7c00)) << i;
        break;
      case DType::kBF16:
        ASSERT_TRUE(same_or_both_nan(take<uint16_t>(bytes, at), wanted.bf16[i], 0x7f80)) << i;
        break;
      case DType::kI8:
        ASSERT_EQ(int{take<int8_t>(bytes, at)}, wanted.i8[i]) << i;
        break;
      default:
        ASSERT_EQ(take<uint32_t>(bytes, at), wanted.x[i]) << i;
    }
  }
  if (kv.dtype == DType::kI8) {
    const auto scale = take<uint32_t>(bytes, begin + kv.page_size * kWidth + 4 * slot);
    ASSERT_TRUE(same_or_both_nan(scale, wanted.scale, 0x7f800000u)) << std::hex << scale;
  }
}

class KvRowsTest : public ::testing::TestWithParam<Isa> {
 protected:
  const std::vector<GoldenRow> golden_ = golden_rows();
};

TEST_P(KvRowsTest, PagesHoldWhatTheOracleComputes) {
  ASSERT_EQ(golden_.size(), 39u);
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool);
  const auto tokens = static_cast<int64_t>(golden_.size());
  Matrix k = tokens_of(golden_, 0, tokens);
  Matrix v = tokens_of(golden_, 20, tokens);
  for (const DType dtype : kDTypes) {
    for (const int64_t page_size : {1, 5, 16}) {
      SCOPED_TRACE(fmt::format("{} pages of {}", dtype_name(dtype), page_size));
      PagedKv kv(page_size, kHeads, kWidth, {tokens}, 3, dtype);
      const AttentionSequence all{0, tokens, 0, kv.tables[0]};
      ops->kv_store(kv.layer, {&all, 1}, k.rows(), v.rows());
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t page = kv.tables[0][static_cast<std::size_t>(t / page_size)];
        for (int64_t h = 0; h < kHeads; ++h) {
          SCOPED_TRACE(fmt::format("token {} head {}", t, h));
          expect_row(kv.layer, kv.k, page, h, t % page_size, golden_of(golden_, 0, t, h));
          expect_row(kv.layer, kv.v, page, h, t % page_size, golden_of(golden_, 20, t, h));
          if (HasFatalFailure()) return;
        }
      }
      for (const std::vector<char>* bytes : {&kv.k, &kv.v}) {
        for (std::size_t i = 0; i < bytes->size(); ++i) ASSERT_EQ((*bytes)[i], '\xff') << "written besides: " << i;
      }
    }
  }
}

// The reference: ref, one thread, all rows in one call.
TEST_P(KvRowsTest, SameBytesForAnyCutAndThreads) {
  const int64_t tokens = 150;
  ThreadPool alone(1);
  const std::unique_ptr<Ops> ref = make_ops(Isa::kRef, alone);
  Matrix k = Matrix::random(tokens, 4 * 36, 1, 3, 4.0f);
  Matrix v = Matrix::random(tokens, 4 * 36, 2, 0, 1e-3f);
  for (const DType dtype : kDTypes) {
    PagedKv wanted(7, 4, 36, {tokens}, 3, dtype);
    const AttentionSequence all{0, tokens, 0, wanted.tables[0]};
    ref->kv_store(wanted.layer, {&all, 1}, k.rows(), v.rows());
    for (const auto& [threads, chunk] : {std::pair<int, int64_t>{1, 1}, {3, 150}, {4, 41}}) {
      ThreadPool pool(threads);
      const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool);
      PagedKv kv(7, 4, 36, {tokens}, 3, dtype);
      for (int64_t done = 0; done < tokens; done += chunk) {
        const int64_t count = std::min(chunk, tokens - done);
        const AttentionSequence part{0, count, done, kv.tables[0]};
        ops->kv_store(kv.layer, {&part, 1}, k.rows().slice(done, count), v.rows().slice(done, count));
      }
      EXPECT_TRUE(kv.k == wanted.k && kv.v == wanted.v) << dtype_name(dtype) << " chunks of " << chunk;
    }
  }
}

// Every f16 word through the vector code, which must agree with half.h (tested against the definition in half_test).
TEST_P(KvRowsTest, EveryF16WordWidens) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool);
  std::vector<uint16_t> words(0x10000);
  std::iota(words.begin(), words.end(), 0);
  TensorView table{words.data(), DType::kF16, {1, 0x10000}};
  Matrix wide(1, 0x10000);
  const int32_t id = 0;
  ops->embedding(table, {&id, 1}, wide.rows());
  for (const uint16_t word : words) {
    const float wanted = f16_to_f32(word);
    const float seen = wide.at(0, word);
    ASSERT_TRUE(std::isnan(wanted) ? std::isnan(seen) : std::memcmp(&seen, &wanted, 4) == 0) << word;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, KvRowsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// read_kv_row is the other half of store_kv_row: value * scale in full.
TEST(KvRows, ReadBackWhatWasStored) {
  const std::vector<float> row = random_floats(20, 4, 3.0f);
  const float largest = std::fabs(
      *std::max_element(row.begin(), row.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
  for (const DType dtype : kDTypes) {
    PagedKv kv(3, 2, 20, {6}, 1, dtype);
    const KvAddress address = kv_address(kv.layer, kv.tables[0], 1, 4);
    store_kv_row(kv.layer, kv.layer.v, address, row.data());
    double seen[20];
    read_kv_row(kv.layer, kv.layer.v, address, seen);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const double magnitude = std::fabs(row[i]);
      const double bound = dtype == DType::kF32    ? 0
                           : dtype == DType::kF16  ? magnitude * 0x1p-11
                           : dtype == DType::kBF16 ? magnitude * 0x1p-8
                                                   : largest / 254 * (1 + 1e-5);
      EXPECT_LE(std::fabs(seen[i] - row[i]), bound) << dtype_name(dtype) << " " << i;
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::testing
