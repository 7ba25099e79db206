// The safetensors format: 8 bytes little-endian header length N, N bytes of JSON, then the tensors' bytes.
//
//   {"__metadata__": {"format": "pt"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
//
// Offsets count from the end of the header. The bytes must be covered without overlap and without a hole, first to
// last. Source: the format section of the safetensors README and the behaviour of its reference reader (version 0.8),
// which is the oracle of the tests. Stricter than it: the header starts with '{' (as in the README; the reader lets
// white space pass), kMaxDims dimensions at most, no element types that Millrace cannot name, no unknown fields.
//
// parse_safetensors trusts nothing: every length is checked before it is used, nothing is allocated that is not backed
// by bytes of the input, nesting beyond the three levels above is refused. The header may have any length, so tensors
// need not be aligned to their element size; WeightStore deals with that.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace millrace {

inline constexpr uint64_t kSafetensorsMaxHeaderBytes = 100'000'000;  // the limit of the reference reader
inline constexpr std::size_t kSafetensorsMaxTensors = 1u << 20;

// A matrix of which the file holds the columns one after another, as rows of a larger tensor
// (formats/stacked_experts.h): element (r, c) lies c * stride + r elements behind the origin.
struct TransposedLayout {
  uint64_t origin = 0;  // of element (0, 0), in bytes from the start of the data
  int64_t stride = 0;   // elements from one column to the next; 0: the tensor is stored row by row
};

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin = 0;  // from the start of the data, see SafetensorsHeader::data_start
  uint64_t end = 0;
  TransposedLayout transposed{};  // then [begin, end) is as long as the tensor, but holds parts of its neighbours

  bool is_transposed() const { return transposed.stride != 0; }
};

struct SafetensorsHeader {
  uint64_t data_start = 0;                      // offset of the data in the file: 8 + header length
  std::vector<SafetensorsEntry> tensors;        // in the order of their bytes (ties by name)
  std::map<std::string, std::string> metadata;  // __metadata__, empty when absent
};

// Reads and validates the header of a whole file given as bytes (the tensors' bytes are never touched). `path` stands
// in the messages only. Errors: kInvalidArgument for every malformed file, kTooLarge for a limit, kUnsupported for a
// dtype that the format knows and this program does not. One line each: path, tensor, value seen, value wanted.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view path);

// A name fit for a one-line message: control characters and invalid UTF-8 escaped, clipped after 120 bytes, in quotes.
std::string quoted_name(std::string_view name);

}  // namespace millrace
