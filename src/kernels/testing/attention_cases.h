// What the tests of attention run over: every implementation that this processor has, with every type of keys and
// values.   INSTANTIATE_TEST_SUITE_P(Isas, Suite, isas_and_kv_dtypes(), isa_and_dtype);
// Thread safety: values.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "kernels/testing/test_data.h"

namespace millrace::kernels::testing {

inline auto isas_and_kv_dtypes() {
  return ::testing::Combine(::testing::ValuesIn(available_isas()),
                            ::testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kI8));
}

inline std::string isa_and_dtype(const ::testing::TestParamInfo<std::tuple<Isa, DType>>& info) {
  return std::string(isa_name(std::get<0>(info.param))) + "_" + std::string(dtype_name(std::get<1>(info.param)));
}

}  // namespace millrace::kernels::testing
