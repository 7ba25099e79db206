// Element types of tensors and their names in files. Thread safety: values.
//
// The quantized types are those of GGUF: a row is a run of blocks, each with its own scales, so that an element has no
// address of its own; storage_bytes() counts whole blocks. What the bytes of a block mean stands in
// kernels/quantized.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kI64,
  kU8,
  kI8,
  kBool,
  kF64,
  kI16,
  kQ8_0,
  kQ4_0,
  kQ4_K,
  kQ5_K,
  kQ6_K
};

// Elements of one block and its bytes; 0 elements: the type has no blocks.
struct BlockSize {
  int64_t elements = 0;
  std::size_t bytes = 0;
};

constexpr BlockSize dtype_block(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return {32, 34};
    case DType::kQ4_0:
      return {32, 18};
    case DType::kQ4_K:
      return {256, 144};
    case DType::kQ5_K:
      return {256, 176};
    case DType::kQ6_K:
      return {256, 210};
    default:
      return {};
  }
}

constexpr bool is_quantized(DType type) { return dtype_block(type).elements > 0; }

// Bytes of one element; 0 for a quantized type.
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
    default:
      return 0;
  }
}

// Bytes of so many elements in a row: of a quantized type, a whole number of blocks (the maker of the tensor checked).
constexpr std::size_t storage_bytes(DType type, int64_t elements) {
  const BlockSize block = dtype_block(type);
  if (block.elements == 0) return static_cast<std::size_t>(elements) * dtype_size(type);
  return static_cast<std::size_t>(elements / block.elements) * block.bytes;
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
    case DType::kQ8_0:
      return "Q8_0";
    case DType::kQ4_0:
      return "Q4_0";
    case DType::kQ4_K:
      return "Q4_K";
    case DType::kQ5_K:
      return "Q5_K";
    case DType::kQ6_K:
      return "Q6_K";
  }
  return "?";
}

// Of the types that a safetensors file may hold: no quantized ones.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kI16); ++i) {
    if (dtype_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace millrace
