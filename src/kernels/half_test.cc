// Conversions against the compiler's own arithmetic: every 16-bit word, and roundings around every f16 and bf16 value.
#include "kernels/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/ops.h"

namespace millrace::kernels {
namespace {

// The value of a binary16 word from its definition.
double f16_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa ? std::nan("") : std::numeric_limits<double>::infinity();
  return bits & 0x8000 ? -value : value;
}

TEST(Half, EveryWordWidensAndComesBack) {
  for (uint32_t word = 0; word < 0x10000; ++word) {
    const uint16_t bits = static_cast<uint16_t>(word);
    const double expected = f16_value(bits);
    const float wide = f16_to_f32(bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide) && std::isnan(f16_to_f32(f32_to_f16(wide))));
    } else {
      ASSERT_EQ(wide, expected);
      ASSERT_EQ(std::signbit(wide), std::signbit(expected));
      ASSERT_EQ(f32_to_f16(wide), bits);
    }
    const float brain = bf16_to_f32(bits);
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(brain))));
    } else {
      ASSERT_EQ(f32_to_bf16(brain), bits);
    }
  }
}

// Between neighbours a < b: just below the middle goes down, just above goes up, the middle goes to the even one.
TEST(Half, NarrowingRoundsToNearestEven) {
  for (uint32_t word = 0; word < 0x7bff; ++word) {
    const float low = f16_to_f32(static_cast<uint16_t>(word));
    const float high = f16_to_f32(static_cast<uint16_t>(word + 1));
    const float middle = (low + high) / 2;  // exact: f32 has 13 more bits
    ASSERT_EQ(f32_to_f16(middle), word % 2 ? word + 1 : word);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, low)), word);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, high)), word + 1);
    ASSERT_EQ(f32_to_f16(-middle), 0x8000u | (word % 2 ? word + 1 : word));
  }
  for (uint32_t word = 0; word < 0x7f7f; ++word) {
    const float low = bf16_to_f32(static_cast<uint16_t>(word));
    const float high = bf16_to_f32(static_cast<uint16_t>(word + 1));
    const float middle = static_cast<float>((double{low} + double{high}) / 2);
    ASSERT_EQ(f32_to_bf16(middle), word % 2 ? word + 1 : word);
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, low)), word);
    ASSERT_EQ(f32_to_bf16(std::nextafter(middle, high)), word + 1);
  }
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Isa, EnvironmentForcesOrTheErrorNamesWhatIsWanted) {
  ASSERT_EQ(setenv("MILLRACE_ISA", "generic", 1), 0);
  EXPECT_EQ(*resolve_isa(), Isa::kGeneric);
  ASSERT_EQ(setenv("MILLRACE_ISA", "ref", 1), 0);
  ThreadPool pool(1);
  EXPECT_EQ((*make_ops(pool))->name(), "ref");
  ASSERT_EQ(setenv("MILLRACE_ISA", "avx3", 1), 0);
  const Result<Isa> bad = resolve_isa();
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.status().message(), "MILLRACE_ISA is 'avx3'; wanted one of ref, generic, avx2, avx512, amx");
  // The widest instructions that this processor has come last in the list.
  Isa best = Isa::kGeneric;
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    ASSERT_EQ(setenv("MILLRACE_ISA", std::string(isa_name(isa)).c_str(), 1), 0);
    EXPECT_EQ(resolve_isa().ok(), isa_available(isa)) << isa_name(isa);
    if (isa_available(isa)) best = isa;
  }
  ASSERT_EQ(setenv("MILLRACE_ISA", "", 1), 0);
  EXPECT_EQ(*resolve_isa(), best);
  ASSERT_EQ(unsetenv("MILLRACE_ISA"), 0);
  EXPECT_EQ(*resolve_isa(), best);
}

}  // namespace
}  // namespace millrace::kernels
