#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/cpu_info.h"

namespace millrace {
namespace {

// The three philox4x32 lines with 10 rounds of Random123's tests/kat_vectors.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32_10({f, f, f, f}, {f, f}), (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SeedCounterAndStreamFillTheWordsInSequence) {
  EXPECT_EQ(philox(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformStaysInsideTheOpenInterval) {
  EXPECT_GT(uniform_open(0), 0.0);
  EXPECT_LT(uniform_open(0xffffffffu), 1.0);
  EXPECT_GT(uniform_open(0, 0), 0.0);
  EXPECT_LT(uniform_open(0xffffffffu, 0xffffffffu), 1.0);
  EXPECT_DOUBLE_EQ(uniform_open(0x80000000u), 0.5 + 0x1p-33);
}

// Mean and variance of U(0,1) are 1/2 and 1/12; over n draws the mean's standard deviation is sqrt(1/12n), so six of
// them bound it.
TEST(Philox, MomentsOfManyDraws) {
  const int n = 200000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < n; ++i) {
    const double u = philox_uniform(42, static_cast<uint64_t>(i));
    sum += u;
    squares += (u - 0.5) * (u - 0.5);
  }
  EXPECT_NEAR(sum / n, 0.5, 6 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 12, 6 * std::sqrt(1.0 / 180 / n));
}

// GCC's own detection is the oracle.
TEST(CpuInfo, AgreesWithTheCompilersBuiltins) {
  const CpuInfo& info = cpu_info();
  EXPECT_GE(info.usable_cpus, 1);
#if defined(__x86_64__)
  __builtin_cpu_init();
  EXPECT_EQ(info.vendor == "AuthenticAMD", __builtin_cpu_is("amd") != 0);
  EXPECT_EQ(info.vendor == "GenuineIntel", __builtin_cpu_is("intel") != 0);
  EXPECT_EQ(info.avx2, __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(info.fma, __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(info.avx_vnni, __builtin_cpu_supports("avxvnni") != 0);
  EXPECT_EQ(info.avx512f, __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(info.avx512bw, __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(info.avx512vl, __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(info.avx512dq, __builtin_cpu_supports("avx512dq") != 0);
  EXPECT_EQ(info.avx512_vnni, __builtin_cpu_supports("avx512vnni") != 0);
#endif
}

}  // namespace
}  // namespace millrace
