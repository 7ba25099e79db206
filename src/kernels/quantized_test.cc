// Blocks against the format's own Python package (tests/oracles/kernels_quantized.py), and quantizing whole matrices.
#include "kernels/quantized.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {
namespace {

struct GoldenCase {
  std::string what;
  DType type;
  std::vector<char> from, to;
};

std::vector<char> bytes_of(const std::string& hex) {
  std::vector<char> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

DType quantized_type(const std::string& name) {
  for (DType type : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    if (dtype_name(type) == name) return type;
  }
  ADD_FAILURE() << "unknown type " << name;
  return DType::kF32;
}

std::vector<GoldenCase> golden_cases() {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/kernels/quantized.txt");
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what, type, from, to;
    words >> what >> type >> from >> to;
    cases.push_back({what, quantized_type(type), bytes_of(from), bytes_of(to)});
  }
  return cases;
}

std::vector<float> floats(const std::vector<char>& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(Quantized, BlocksStandForWhatTheFormatDefines) {
  int seen = 0;
  for (const GoldenCase& c : golden_cases()) {
    if (c.what != "dequantize") continue;
    const std::vector<float> wanted = floats(c.to);
    std::vector<float> got(wanted.size(), -1.0f);
    dequantize_row(c.type, c.from.data(), static_cast<int64_t>(got.size()), got.data());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (std::isnan(wanted[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << dtype_name(c.type) << " case " << seen << " element " << i;
      } else {
        ASSERT_EQ(got[i], wanted[i]) << dtype_name(c.type) << " case " << seen << " element " << i;
      }
    }
    ++seen;
  }
  EXPECT_EQ(seen, 8 * 2 + 5 * 3 + 8 + 16);
}

TEST(Quantized, RowsBecomeTheBlocksOfTheReference) {
  int seen = 0;
  for (const GoldenCase& c : golden_cases()) {
    if (c.what != "quantize") continue;
    const std::vector<float> from = floats(c.from);
    std::vector<char> got(c.to.size(), '\x55');
    quantize_row(c.type, from.data(), static_cast<int64_t>(from.size()), got.data());
    ASSERT_EQ(got, c.to) << dtype_name(c.type) << " case " << seen;
    ++seen;
  }
  EXPECT_EQ(seen, 2 * (21 + 11 + 3));
}

// A value so small that the inverse of its scale is infinite: zeros, not garbage.
TEST(Quantized, SubnormalScalesGiveZeros) {
  std::vector<float> row(32, 0.0f);
  row[3] = 1e-44f;
  row[9] = -2e-44f;
  for (DType type : {DType::kQ8_0, DType::kQ4_0}) {
    std::vector<char> blocks(dtype_block(type).bytes);
    quantize_row(type, row.data(), 32, blocks.data());
    std::vector<float> back(32, 1.0f);
    dequantize_row(type, blocks.data(), 32, back.data());
    for (float value : back) EXPECT_EQ(value, 0.0f);
  }
}

TEST(Quantized, MatricesRowByRowFromEveryDtype) {
  ThreadPool pool(3);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Weights w({37, 2080}, dtype, 5, 2);  // no aligned address, more than one run of the loop
    std::vector<float> row(2080);
    for (DType type : {DType::kQ8_0, DType::kQ4_0}) {
      const Result<Buffer> got = quantize(w.view, type, pool);
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      const std::size_t row_bytes = storage_bytes(type, 2080);
      ASSERT_EQ(got->size_bytes(), 37 * row_bytes);
      std::vector<char> wanted(row_bytes);
      for (int64_t r = 0; r < 37; ++r) {
        for (int64_t i = 0; i < 2080; ++i) row[static_cast<std::size_t>(i)] = w.get(r * 2080 + i);
        quantize_row(type, row.data(), 2080, wanted.data());
        ASSERT_EQ(std::memcmp(wanted.data(), got->data() + static_cast<std::size_t>(r) * row_bytes, row_bytes), 0) << r;
      }
    }
  }
}

TEST(Quantized, WhatCannotBeQuantizedIsReported) {
  ThreadPool pool(1);
  const Weights w({2, 48}, DType::kF32, 1);
  EXPECT_EQ(quantize(w.view, DType::kQ8_0, pool).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(quantize(w.view, DType::kQ4_K, pool).status().code(), StatusCode::kUnsupported);
  const std::vector<int32_t> ids(64);
  const TensorView integers{.data = ids.data(), .dtype = DType::kI32, .shape = {2, 32}};
  EXPECT_EQ(quantize(integers, DType::kQ8_0, pool).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace millrace::kernels::testing
