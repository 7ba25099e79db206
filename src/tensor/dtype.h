// Element types of tensors and their names in safetensors files. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32, kI64, kU8, kI8, kBool, kF64, kI16 };

// Bytes of one element.
constexpr std::size_t dtype_size(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
      return 2;
    case DType::kU8:
    case DType::kI8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

// The safetensors spelling: "F32", "BF16", ...
constexpr std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
    case DType::kBool:
      return "BOOL";
    case DType::kF64:
      return "F64";
    case DType::kI16:
      return "I16";
  }
  return "?";
}

constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kI16); ++i) {
    if (dtype_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace millrace
