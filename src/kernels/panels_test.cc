// Products with packed quantized weights: against the arithmetic of cpu/panel_table.h written here in f64, against the
// oracle `ref` within the error of quantizing x, and to the bit between instruction sets, batch sizes and thread
// counts.
#include <gtest/gtest.h>

#include "base/cpu_info.h"
#include "kernels/cpu/packed.h"
#include "kernels/cpu/panel_linear.h"
#include "kernels/quantized.h"
#include "kernels/testing/panels_evex256.h"
#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

constexpr double kEps = 0x1p-24;
const DType kTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

int64_t elements(DType type) { return dtype_block(type).elements; }

// Random bytes with scales of about 0.01: every integer of every block is drawn evenly.
struct Blocks {
  Blocks(int64_t rows, int64_t columns, DType type, uint64_t seed)
      : bytes(storage_bytes(type, rows * columns)),
        view{.data = bytes.data(), .dtype = type, .shape = {rows, columns}} {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(philox(seed, i)[0]);
    const std::size_t size = dtype_block(type).bytes;
    for (std::size_t i = 0; i < bytes.size() / size; ++i) {
      const auto d = static_cast<float>(philox_uniform(seed + 1, i) - 0.3) * 0.02f;
      set_scale(i, 0, d);
      if (type == DType::kQ4_K || type == DType::kQ5_K) set_scale(i, 2, d * 3);
    }
  }
  Blocks(const Blocks&) = delete;
  // Block `index` of the matrix: the f16 at byte 0 or 2 (of Q6_K, which has one at its end, 0 alone).
  void set_scale(std::size_t index, std::size_t at, float value) {
    if (view.dtype == DType::kQ6_K) at = 208;
    const uint16_t bits = f32_to_f16(value);
    std::memcpy(bytes.data() + index * dtype_block(view.dtype).bytes + at, &bits, 2);
  }
  std::vector<float> row(int64_t r) const {
    std::vector<float> values(static_cast<std::size_t>(view.shape[1]));
    dequantize_row(view.dtype, bytes.data() + static_cast<std::size_t>(r) * storage_bytes(view.dtype, view.shape[1]),
                   view.shape[1], values.data());
    return values;
  }
  std::vector<uint8_t> bytes;
  TensorView view;
};

struct NamedTable {
  std::string name;
  const PanelTable* table;
};

// The panel kernels that this processor runs; what it lacks is reported and left out.
std::vector<NamedTable> tables() {
  std::vector<NamedTable> list{{"generic", &panel_table("generic")}};
#if defined(__x86_64__)
  if (isa_available(Isa::kAvx2)) list.push_back({"avx2", &kAvx2Panels});
  if (cpu_info().avx_vnni) list.push_back({"avxvnni", &kAvxVnniPanels});
  if (cpu_info().avx512vl && cpu_info().avx512_vnni) list.push_back({"evex256", &kEvex256Panels});
  for (const NamedTable& wide : {NamedTable{"avx512", &kAvx512Panels}, NamedTable{"amx", &kAmxPanels}}) {
    if (isa_available(Isa::kAvx512) && &panel_table(wide.name) == wide.table) {
      list.push_back(wide);
    } else {
      fmt::print(stderr, "not tested: panels of {}, which this processor lacks\n", wide.name);
    }
  }
#endif
  return list;
}

class PanelsTest : public ::testing::TestWithParam<NamedTable> {
 protected:
  ThreadPool pool_{2};
  PanelLinear linear_{*GetParam().table, pool_};

  Weight pack(const Blocks& blocks) {
    Result<Weight> weight = pack_panels(blocks.view, pool_);
    CHECK(weight.ok());
    return *weight;
  }
};

// A row of x as the arithmetic sees it: dx and integers per block of 32.
struct QuantizedX {
  explicit QuantizedX(const float* x, int64_t count) {
    for (int64_t b = 0; b < count / 32; ++b) {
      float most = 0;
      for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(x[b * 32 + i]));
      d.push_back(most / 127.0f);
      for (int i = 0; i < 32; ++i) {
        q.push_back(d.back() == 0 ? 0 : static_cast<int>(std::nearbyint(x[b * 32 + i] * (127.0f / most))));
      }
    }
  }
  std::vector<float> d;
  std::vector<int> q;
};

// What an element should be, and a bound of the rounding on the way: each block adds to a chain of f32 sums, with up to
// five roundings of its own, and its terms are bounded by `magnitude`.
struct Expected {
  double value = 0;
  double magnitude = 0;
};

Expected expected(const QuantizedX& x, const std::vector<float>& w) {
  Expected e;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double term = double{x.d[i / 32]} * x.q[i] * double{w[i]};
    e.value += term;
    e.magnitude += std::fabs(term);
  }
  return e;
}

// With a minimum per sub-block the terms that cancel are bigger than the products: bounded by |x| times the largest
// weights that such a block can hold.
double slack(DType type, const Blocks& blocks, const QuantizedX& x, int64_t row) {
  if (type != DType::kQ4_K && type != DType::kQ5_K) return 0;
  double sum = 0;
  const std::size_t size = dtype_block(type).bytes;
  const std::size_t per_row = storage_bytes(type, blocks.view.shape[1]);
  for (std::size_t i = 0; i < x.q.size(); ++i) {
    const uint8_t* block = blocks.bytes.data() + static_cast<std::size_t>(row) * per_row + i / 256 * size;
    uint16_t d, dmin;
    std::memcpy(&d, block, 2);
    std::memcpy(&dmin, block + 2, 2);
    sum += 63.0 * (31 * std::fabs(f16_to_f32(d)) + std::fabs(f16_to_f32(dmin))) * x.d[i / 32] * std::abs(x.q[i]);
  }
  return sum;
}

void multiply(PanelLinear& linear, ConstRows x, const Weight& weight, Rows y, const float* bias = nullptr,
              bool accumulate = false) {
  const CpuProduct one{&weight, y, bias, accumulate};
  linear.run(x, {&one, 1});
}

void expect_linear(PanelLinear& linear, const Blocks& blocks, const Weight& weight, int64_t rows) {
  const int64_t n = weight.rows(), k = weight.columns();
  SCOPED_TRACE(fmt::format("{} M {} N {} K {}", dtype_name(weight.dtype()), rows, n, k));
  Matrix x = Matrix::random(rows, k, 7, 3), y = Matrix::random(rows, n, 8, 5), before = y;
  const std::vector<float> bias = random_floats(n, 9);
  const bool accumulate = rows % 2 == 1;
  std::vector<QuantizedX> quantized;
  for (int64_t r = 0; r < rows; ++r) quantized.emplace_back(x.rows().row(r), k);
  multiply(linear, x.rows(), weight, y.rows(), rows % 3 == 0 ? nullptr : bias.data(), accumulate);
  for (int64_t j = 0; j < n; ++j) {
    const std::vector<float> w = blocks.row(j);
    for (int64_t r = 0; r < rows; ++r) {
      const QuantizedX& q = quantized[static_cast<std::size_t>(r)];
      const Expected e = expected(q, w);
      const double rest =
          (rows % 3 == 0 ? 0.0 : bias[static_cast<std::size_t>(j)]) + (accumulate ? double{before.at(r, j)} : 0.0);
      const double bound =
          (static_cast<double>(k) / 32 + 12) * kEps * (e.magnitude + slack(weight.dtype(), blocks, q, j)) +
          4 * kEps * (std::fabs(rest) + std::fabs(e.value) + 2);
      ASSERT_NEAR(y.at(r, j), e.value + rest, bound) << "row " << r << " column " << j;
    }
  }
  EXPECT_TRUE(y.gaps_untouched());
}

TEST_P(PanelsTest, LinearIsTheStatedArithmetic) {
  for (DType type : kTypes) {
    const int64_t block = elements(type);
    for (const auto& [n, blocks_of_k] : {std::pair<int64_t, int64_t>{1, 1}, {15, 2}, {16, 3}, {17, 4}, {50, 9}}) {
      const Blocks blocks(n, blocks_of_k * block, type, static_cast<uint64_t>(n));
      const Weight weight = pack(blocks);
      for (int64_t rows : {1, 2, 3, 8, 11, 17, 33}) expect_linear(linear_, blocks, weight, rows);
    }
  }
}

// Every integer at its end of the range, with either sign: no partial sum saturates.
TEST_P(PanelsTest, ExtremesDoNotOverflow) {
  for (DType type : kTypes) {
    for (int fill : {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0}) {
      Blocks blocks(19, 512, type, 3);
      const std::size_t size = dtype_block(type).bytes;
      std::fill(blocks.bytes.begin(), blocks.bytes.end(), static_cast<uint8_t>(fill));
      for (std::size_t i = 0; i < blocks.bytes.size() / size; ++i) {
        blocks.set_scale(i, 0, 0.5f);
        if (type == DType::kQ4_K || type == DType::kQ5_K) blocks.set_scale(i, 2, 0.25f);
      }
      const Weight weight = pack(blocks);
      for (float value : {1.0f, -1.0f}) {
        for (int64_t rows : {1, 20}) {
          Matrix x(rows, 512), y(rows, 19);
          for (int64_t r = 0; r < rows; ++r) std::fill_n(x.rows().row(r), 512, value);
          multiply(linear_, x.rows(), weight, y.rows());
          const QuantizedX q(x.rows().row(0), 512);
          for (int64_t j = 0; j < 19; ++j) {
            const Expected e = expected(q, blocks.row(j));
            const double bound = 40 * kEps * (e.magnitude + slack(type, blocks, q, j));
            ASSERT_NEAR(y.at(rows - 1, j), e.value, bound) << dtype_name(type) << " filled with " << fill;
          }
        }
      }
    }
  }
}

// |x - q dx| is at most dx / 2 (and a rounding): the products differ from those of the floats by at most this.
TEST_P(PanelsTest, NearTheOracleByTheErrorOfQuantizing) {
  const std::unique_ptr<Ops> ref = make_ops(Isa::kRef, pool_);
  for (DType type : kTypes) {
    const Blocks blocks(33, 512, type, 5);
    const Weight weight = pack(blocks);
    Matrix x = Matrix::random(18, 512, 6), y(18, 33), exact(18, 33);
    multiply(linear_, x.rows(), weight, y.rows());
    ref->linear(x.rows(), blocks.view, exact.rows());
    for (int64_t r = 0; r < 18; ++r) {
      const QuantizedX q(x.rows().row(r), 512);
      for (int64_t j = 0; j < 33; ++j) {
        const std::vector<float> w = blocks.row(j);
        double bound = 28 * kEps * (expected(q, w).magnitude + slack(type, blocks, q, j));
        for (std::size_t i = 0; i < w.size(); ++i) bound += 0.50001 * double{q.d[i / 32]} * std::fabs(double{w[i]});
        ASSERT_NEAR(y.at(r, j), exact.at(r, j), bound) << dtype_name(type);
      }
    }
  }
}

TEST_P(PanelsTest, EveryBatchSizeAndThreadCountGivesTheSameBits) {
  for (DType type : kTypes) {
    const int64_t k = 3 * std::max<int64_t>(elements(type), 64) + (elements(type) == 32 ? 32 : 0);
    const Blocks blocks(37, k, type, 11);
    const Weight weight = pack(blocks);
    Matrix x = Matrix::random(40, k, 12), all(40, 37);
    multiply(linear_, x.rows(), weight, all.rows());
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      PanelLinear linear(*GetParam().table, pool);
      for (int64_t size = 1; size <= 40; ++size) {
        for (int64_t begin = 0; begin < 40; begin += size) {
          const int64_t count = std::min(size, 40 - begin);
          Matrix y(count, 37, threads);
          multiply(linear, x.rows().slice(begin, count), weight, y.rows());
          for (int64_t r = 0; r < count; ++r) {
            ASSERT_EQ(std::memcmp(y.rows().row(r), all.rows().row(begin + r), 37 * 4), 0)
                << dtype_name(type) << ", " << count << " rows from " << begin << ", row " << r;
          }
        }
      }
    }
  }
}

// More rows than one turn takes, and enough work for several threads.
TEST_P(PanelsTest, RowsInSeveralTurns) {
  const Blocks blocks(70, 256, DType::kQ4_0, 1);
  const Weight weight = pack(blocks);
  const int64_t rows = kPanelRowsAtOnce + 21;
  Matrix x = Matrix::random(rows, 256, 2), y(rows, 70), one(1, 70);
  multiply(linear_, x.rows(), weight, y.rows());
  for (int64_t r : {int64_t{0}, kPanelRowsAtOnce - 1, kPanelRowsAtOnce, rows - 1}) {
    multiply(linear_, x.rows().slice(r, 1), weight, one.rows());
    EXPECT_EQ(std::memcmp(one.rows().data, y.rows().row(r), 70 * 4), 0) << r;
  }
}

TEST_P(PanelsTest, FusedInstructionSetsAgreeToTheBit) {
  if (GetParam().name == "generic") GTEST_SKIP() << "generic rounds its products by themselves";
#if defined(__x86_64__)
  PanelLinear avx2(kAvx2Panels, pool_);
  for (DType type : kTypes) {
    const Blocks blocks(95, 1280, type, 21);
    const Weight weight = pack(blocks);
    for (int64_t rows : {1, 7, 16, 50}) {
      Matrix x = Matrix::random(rows, 1280, 22, 1, 3.0f), y(rows, 95), wanted(rows, 95);
      x.at(rows / 2, 40) = 1e30f;  // blocks of very different sizes, one of zeros, one with a subnormal
      for (int i = 64; i < 96; ++i) x.at(0, i) = 0;
      for (int i = 96; i < 128; ++i) x.at(0, i) = 1e-40f;
      multiply(linear_, x.rows(), weight, y.rows());
      multiply(avx2, x.rows(), weight, wanted.rows());
      ASSERT_EQ(y.storage.size(), wanted.storage.size());
      for (int64_t r = 0; r < rows; ++r) {
        ASSERT_EQ(std::memcmp(y.rows().row(r), wanted.rows().row(r), 95 * 4), 0) << dtype_name(type) << " row " << r;
      }
    }
  }
#endif
}

TEST_P(PanelsTest, WhatIsNotFiniteStaysInItsRow) {
  for (DType type : kTypes) {
    Blocks blocks(20, 512, type, 31);
    for (float bad : {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      const Weight weight = pack(blocks);
      Matrix x = Matrix::random(19, 512, 32), clean(19, 20), y(19, 20);
      multiply(linear_, x.rows(), weight, clean.rows());
      x.at(3, 300) = bad;
      x.at(17, 0) = bad;
      multiply(linear_, x.rows(), weight, y.rows());
      for (int64_t r = 0; r < 19; ++r) {
        for (int64_t j = 0; j < 20; ++j) {
          if (r == 3 || r == 17) {
            ASSERT_TRUE(std::isnan(y.at(r, j))) << dtype_name(type);
          } else {
            ASSERT_EQ(y.at(r, j), clean.at(r, j)) << dtype_name(type);
          }
        }
      }
    }
    // And a scale of the weights: its own column.
    const std::size_t per_row = static_cast<std::size_t>(512 / elements(type));
    blocks.set_scale(6 * per_row + per_row - 1, 0, kNan);
    const Weight weight = pack(blocks);
    Matrix x = Matrix::random(19, 512, 32), y(19, 20);
    multiply(linear_, x.rows(), weight, y.rows());
    for (int64_t r = 0; r < 19; ++r) {
      for (int64_t j = 0; j < 20; ++j) ASSERT_EQ(std::isnan(y.at(r, j)), j == 6) << dtype_name(type);
    }
  }
}

TEST_P(PanelsTest, BiasThenOldValue) {
  const Blocks blocks(21, 96, DType::kQ8_0, 41);
  const Weight weight = pack(blocks);
  Matrix x = Matrix::random(18, 96, 42), plain(18, 21), y = Matrix::random(18, 21, 43), old = y;
  const std::vector<float> bias = random_floats(21, 44);
  multiply(linear_, x.rows(), weight, plain.rows());
  multiply(linear_, x.rows(), weight, y.rows(), bias.data(), true);
  for (int64_t r = 0; r < 18; ++r) {
    for (int64_t j = 0; j < 21; ++j) {
      const float with_bias = plain.at(r, j) + bias[static_cast<std::size_t>(j)];
      EXPECT_EQ(y.at(r, j), with_bias + old.at(r, j));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, PanelsTest, ::testing::ValuesIn(tables()),
                         [](const auto& info) { return info.param.name; });

// Through Ops: packing for an implementation, its embedding, its linear.
class PackedOpsTest : public ::testing::TestWithParam<Isa> {};

TEST_P(PackedOpsTest, EmbeddingIsDequantizeRow) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool);
  for (DType type : kTypes) {
    for (int64_t rows : {1, 16, 43}) {
      const int64_t columns = 3 * elements(type);
      const Blocks blocks(rows, columns, type, static_cast<uint64_t>(rows));
      const Result<Weight> table = pack_weight(GetParam(), blocks.view, pool);
      ASSERT_TRUE(table.ok()) << table.status().to_string();
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < 50; ++i) ids.push_back(i * 7 % static_cast<int32_t>(rows));
      Matrix y(50, columns, 1);
      ops->embedding(*table, ids, y.rows());
      for (int64_t r = 0; r < 50; ++r) {
        const std::vector<float> wanted = blocks.row(ids[static_cast<std::size_t>(r)]);
        ASSERT_EQ(std::memcmp(y.rows().row(r), wanted.data(), wanted.size() * 4), 0) << dtype_name(type);
      }
    }
  }
}

TEST_P(PackedOpsTest, LinearTakesPackedWeights) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool), ref = make_ops(Isa::kRef, pool);
  const Blocks blocks(40, 256, DType::kQ8_0, 1);
  const Weights bias({40}, DType::kBF16, 2);
  const Result<Weight> weight = pack_weight(GetParam(), blocks.view, pool);
  ASSERT_TRUE(weight.ok());
  Matrix x = Matrix::random(6, 256, 3), y = Matrix::random(6, 40, 4), wanted = y;
  ops->linear(x.rows(), *weight, y.rows(), {.bias = bias.view, .accumulate = true});
  ref->linear(x.rows(), blocks.view, wanted.rows(), {.bias = bias.view, .accumulate = true});
  for (int64_t r = 0; r < 6; ++r) {
    for (int64_t j = 0; j < 40; ++j) EXPECT_NEAR(y.at(r, j), wanted.at(r, j), 0.05 * std::sqrt(256));
  }
}

// Quantized on the way into panels is quantized, then packed: also where a panel is not full and a group has one block.
TEST_P(PackedOpsTest, QuantizingWhilePackingIsTheSame) {
  ThreadPool pool(3);
  const std::unique_ptr<Ops> ops = make_ops(GetParam(), pool);
  for (const DType to : {DType::kQ8_0, DType::kQ4_0}) {
    for (const DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
      const int64_t rows = 83, columns = 1120;
      const Weights floats({rows, columns}, from, 5);
      const Result<Buffer> blocks = quantize(floats.view, to, pool);
      ASSERT_TRUE(blocks.ok());
      const TensorView view{.data = blocks->data(), .dtype = to, .shape = {rows, columns}};
      const Result<Weight> twice = pack_weight(GetParam(), view, pool);
      const Result<Weight> once = pack_weight(GetParam(), floats.view, pool, to);
      ASSERT_TRUE(twice.ok() && once.ok()) << once.status().to_string();
      EXPECT_EQ(once->dtype(), to);
      std::vector<int32_t> ids(static_cast<std::size_t>(rows));
      std::iota(ids.begin(), ids.end(), 0);
      Matrix a(rows, columns), b(rows, columns);
      ops->embedding(*twice, ids, a.rows());
      ops->embedding(*once, ids, b.rows());
      EXPECT_EQ(std::memcmp(a.rows().data, b.rows().data, static_cast<std::size_t>(rows * columns) * 4), 0);
      Matrix x = Matrix::random(3, columns, 6), y(3, rows), z(3, rows);
      ops->linear(x.rows(), *twice, y.rows());
      ops->linear(x.rows(), *once, z.rows());
      EXPECT_EQ(std::memcmp(y.rows().data, z.rows().data, static_cast<std::size_t>(3 * rows) * 4), 0);
    }
  }
  const Weights odd({4, 40}, DType::kBF16, 7);
  EXPECT_EQ(pack_weight(GetParam(), odd.view, pool, DType::kQ8_0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(pack_weight(GetParam(), odd.view, pool, DType::kQ4_K).status().code(), StatusCode::kUnsupported);
}

// Several products of one x at one go have the bits of each alone: weights of all kinds mixed, more than go into one
// loop, one without columns among them, on every number of threads.
TEST_P(PackedOpsTest, ProductsTogetherAreTheProductsAlone) {
  ThreadPool one(1), three(3);
  const std::unique_ptr<Ops> alone = make_ops(GetParam(), one), together = make_ops(GetParam(), three);
  constexpr int64_t kColumns = 512;
  std::vector<Weight> weights;
  const auto pack = [&](const TensorView& view) {
    const Result<Weight> weight = pack_weight(GetParam(), view, three);
    ASSERT_TRUE(weight.ok()) << weight.status().to_string();
    weights.push_back(*weight);
  };
  std::vector<std::unique_ptr<Blocks>> blocks;
  std::vector<std::unique_ptr<Weights>> plain;
  uint64_t seed = 7;
  for (const int64_t n : {40, 1, 200, 16, 33, 95, 7, 300, 64, 2}) {
    blocks.push_back(std::make_unique<Blocks>(n, kColumns, DType::kQ8_0, ++seed));
    pack(blocks.back()->view);
  }
  for (const DType type : {DType::kQ4_0, DType::kQ4_K, DType::kBF16, DType::kBF16, DType::kF32, DType::kBF16}) {
    if (is_quantized(type)) {
      blocks.push_back(std::make_unique<Blocks>(48, kColumns, type, ++seed));
      pack(blocks.back()->view);
    } else {
      plain.push_back(std::make_unique<Weights>(Shape{71, kColumns}, type, ++seed));
      pack(plain.back()->view);
    }
  }
  weights.push_back(plain.back()->view);  // as a file holds it, beside the same in tiles
  const Weights none({0, kColumns}, DType::kBF16, ++seed);
  weights.push_back(none.view);
  for (const int64_t rows : {1, 3, 20, 150}) {
    Matrix x = Matrix::random(rows, kColumns, ++seed);
    std::vector<Matrix> wanted, got;
    std::vector<std::unique_ptr<Weights>> biases;
    std::vector<Product> products;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      wanted.push_back(Matrix::random(rows, weights[i].rows(), ++seed));
      got.push_back(wanted.back());
      biases.push_back(std::make_unique<Weights>(Shape{weights[i].rows()}, DType::kF16, ++seed));
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const LinearOptions options{.bias = i % 3 == 0 ? biases[i]->view : TensorView(), .accumulate = i % 2 == 0};
      alone->linear(x.rows(), weights[i], wanted[i].rows(), options);
      products.push_back({&weights[i], got[i].rows(), options});
    }
    together->products(x.rows(), products);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      for (int64_t r = 0; r < rows; ++r) {
        ASSERT_EQ(std::memcmp(got[i].rows().row(r), wanted[i].rows().row(r),
                              static_cast<std::size_t>(weights[i].rows()) * sizeof(float)),
                  0)
            << "product " << i << ", row " << r << " of " << rows;
      }
    }
  }
}

TEST_P(PackedOpsTest, RowsThatAreNotFullBlocksAreRefused) {
  ThreadPool pool(1);
  const std::vector<uint8_t> bytes(4096);
  const TensorView odd{.data = bytes.data(), .dtype = DType::kQ4_K, .shape = {2, 128}};
  EXPECT_EQ(pack_weight(GetParam(), odd, pool).status().code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Isas, PackedOpsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// The panels are all that a packed weight holds: the bytes of the blocks, and little more.
TEST(Packed, SizeIsThatOfTheBlocks) {
  ThreadPool pool(1);
  const struct {
    DType type;
    double most;
  } cases[] = {
      {DType::kQ8_0, 1.0}, {DType::kQ4_0, 1.0}, {DType::kQ4_K, 1.03}, {DType::kQ5_K, 1.03}, {DType::kQ6_K, 1.01}};
  for (const auto& c : cases) {
    const Blocks blocks(64, 1024, c.type, 1);
    const Result<Weight> weight = pack_panels(blocks.view, pool);
    ASSERT_TRUE(weight.ok());
    EXPECT_LE(static_cast<double>(weight->size_bytes()), c.most * static_cast<double>(blocks.view.size_bytes()));
    EXPECT_EQ(weight->view.data, nullptr);
  }
}

}  // namespace
}  // namespace millrace::kernels::testing
