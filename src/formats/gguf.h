// The GGUF container (versions 2 and 3, little-endian): metadata by key, and where the tensors lie.
//
//   "GGUF" | u32 version | u64 tensor count | u64 key count | keys and values | tensor infos | padding | tensor data
//
// A string is a u64 length and bytes. A key-value pair is a string, a u32 type and the value; an array is a u32 element
// type, a u64 count and the elements. A tensor info is a name, a u32 number of dimensions, u64 extents with the fastest
// first, a u32 type, and a u64 offset from the start of the data. Data and every offset are multiples of
// general.alignment (32 where the file has none). Source: the format's published description; its Python package is the
// oracle of the tests.
//
// parse_gguf trusts nothing: every length is checked against the bytes that are left before it is used, nothing is
// allocated that is not backed by bytes of the file, and there is no recursion (arrays of arrays are refused). Stricter
// than the reference: keys and names are bounded, tensors must not overlap.
//
// Thread safety: free functions and values. A GgufHeader points into the bytes that it was read from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace millrace {

inline constexpr uint64_t kGgufMaxTensors = 1u << 20;
inline constexpr uint64_t kGgufMaxKeys = 1u << 16;
inline constexpr uint64_t kGgufMaxKeyBytes = (1u << 16) - 1;  // of the published description
inline constexpr uint64_t kGgufMaxTensorNameBytes = 64;       // likewise
inline constexpr uint64_t kGgufMaxStringBytes = 64u << 20;    // the longest chat templates have 0.1 MB
inline constexpr uint64_t kGgufMaxArrayElements = 1u << 26;   // vocabularies have up to 2^18, merges 2^19
inline constexpr uint32_t kGgufMaxDims = 4;                   // of the format
inline constexpr uint32_t kGgufMaxAlignment = 1u << 16;
inline constexpr uint32_t kGgufDefaultAlignment = 32;

// The numbers are the file's.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};
std::string_view gguf_type_name(GgufType type);  // "u8", "string", ...
std::size_t gguf_type_size(GgufType type);       // bytes of one value; 0: string or array

// One value of the metadata. A scalar is an array of one, apart from `is_array`.
struct GgufValue {
  GgufType type = GgufType::kU8;  // of the elements; never kArray
  bool is_array = false;
  uint64_t count = 1;
  std::span<const std::byte> bytes;       // the elements, unless they are strings
  std::vector<std::string_view> strings;  // the elements, if they are strings

  // Element i of any whole-number type (or bool) that fits; nullopt otherwise. i < count.
  std::optional<int64_t> integer(uint64_t i = 0) const;
  // Of any number type.
  std::optional<double> real(uint64_t i = 0) const;
  // "u32", "array of 3 string": for messages.
  std::string type_text() const;
};

struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;         // the slowest dimension first, as everywhere here
  uint64_t begin = 0;  // from the start of the data, see GgufHeader::data_start
  uint64_t end = 0;
};

struct GgufHeader {
  uint32_t version = 0;
  uint32_t alignment = kGgufDefaultAlignment;
  uint64_t data_start = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in the order of their bytes

  const GgufValue* find(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;
};

// Reads and validates the header of a whole file given as bytes (the tensors' bytes are never touched). `path` stands
// in the messages only. Errors: kInvalidArgument for every malformed file, kTooLarge for a limit, kUnsupported for a
// version, a value type or a tensor type that this program does not read. One line each: path, what, seen, wanted.
Result<GgufHeader> parse_gguf(std::span<const std::byte> file, std::string_view path);

// Whether the bytes begin like a GGUF file.
bool has_gguf_magic(std::span<const std::byte> file);

// Typed reads: `fallback` where the key is absent; without one, kInvalidArgument. A value of another type or out of
// range is kInvalidArgument, naming key, type and range.
Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<int64_t> fallback, int64_t low,
                 int64_t high, int64_t& out);
Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<double> fallback, double& out);
Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<bool> fallback, bool& out);
Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<std::string_view> fallback,
                 std::string_view& out);

// The format's number of a dtype (F32 is 0, BF16 30, Q8_0 8 ...); nullopt for those without one.
std::optional<uint32_t> gguf_tensor_type(DType dtype);

}  // namespace millrace
