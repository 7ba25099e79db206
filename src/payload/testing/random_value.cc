#include "payload/testing/random_value.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace millrace::testing {
namespace {

constexpr int kDeepest = 7;

void append_character(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

}  // namespace

std::string RandomValues::text(std::size_t max_characters) {
  static constexpr uint32_t kEnds[] = {0x80, 0x800, 0x10000, 0x110000};
  std::string out;
  for (std::size_t left = below(max_characters + 1); left > 0; --left) {
    uint32_t code = static_cast<uint32_t>(below(kEnds[below(4)]));
    if (code >= 0xD800 && code <= 0xDFFF) code = 0xFFFD;  // surrogates are no characters
    append_character(out, code);
  }
  return out;
}

std::string RandomValues::bytes(std::size_t max_bytes) {
  std::string out(below(max_bytes + 1), '\0');
  for (char& byte : out) byte = static_cast<char>(below(3) ? random_() : 0);
  return out;
}

SharedTensor RandomValues::tensor() {
  if (!made_.empty() && below(5) == 0) return made_[below(made_.size())];
  SharedTensor tensor{.dtype = static_cast<DType>(below(static_cast<uint64_t>(DType::kI16) + 1))};
  const int rank = static_cast<int>(below(4) ? below(4) : below(kMaxDims + 1));
  for (int i = 0; i < rank; ++i) tensor.shape.push_back(static_cast<int64_t>(below(rank > 4 ? 3 : 6)));
  const std::size_t size = static_cast<std::size_t>(tensor.shape.elements()) * dtype_size(tensor.dtype);
  if (size == 0) return tensor;
  if (!made_.empty() && below(6) == 0) {  // a view into another tensor's block: same start, another size
    const SharedTensor& other = made_[below(made_.size())];
    const auto address = reinterpret_cast<uintptr_t>(other.bytes.data());
    if (size <= other.bytes.size_bytes() && address % dtype_size(tensor.dtype) == 0) {
      tensor.bytes = other.bytes.slice(0, size);
      return tensor;
    }
  }
  const std::size_t before = below(3) * 8;
  Buffer buffer(before + size + below(9));
  for (std::byte& byte : buffer.as<std::byte>()) byte = static_cast<std::byte>(random_());
  tensor.bytes = SharedBytes(std::move(buffer)).slice(before, size);
  made_.push_back(tensor);
  return tensor;
}

Value RandomValues::leaf() {
  static constexpr int64_t kIntegers[] = {0,
                                          1,
                                          -1,
                                          127,
                                          128,
                                          -32,
                                          -33,
                                          -128,
                                          -129,
                                          32767,
                                          -32769,
                                          65536,
                                          4294967296,
                                          std::numeric_limits<int64_t>::min(),
                                          std::numeric_limits<int64_t>::max()};
  static constexpr double kNumbers[] = {0.0,
                                        -0.0,
                                        1.5,
                                        std::numeric_limits<double>::infinity(),
                                        -std::numeric_limits<double>::infinity(),
                                        std::numeric_limits<double>::denorm_min(),
                                        std::numeric_limits<double>::max()};
  switch (below(10)) {
    case 0:
      return {};
    case 1:
      return below(2) == 0;
    case 2:
      return kIntegers[below(std::size(kIntegers))];
    case 3:
      return static_cast<int64_t>(random_() >> below(64));
    case 4:
      return kNumbers[below(std::size(kNumbers))];
    case 5:  // any bits, NaNs with a payload among them
      return std::bit_cast<double>(below(2) ? random_() : random_() | 0x7FF0000000000000u);
    case 6:
      return text(below(8) ? 12 : 300);
    case 7:
      return ValueBytes{bytes(below(8) ? 12 : 300)};
    default:
      return tensor();
  }
}

Value RandomValues::one(int depth) {
  --nodes_left_;
  if (depth == kDeepest || nodes_left_ <= 0 || below(depth ? 2 : 8) == 0) return leaf();
  const auto entries = static_cast<int>(below(7));
  if (below(2)) {
    ValueList list;
    for (int i = 0; i < entries && nodes_left_ > 0; ++i) list.push_back(one(depth + 1));
    return list;
  }
  ValueMap map;
  for (int i = 0; i < entries && nodes_left_ > 0; ++i) {
    // Numbered, so that a key stands there once.
    map.emplace_back(text(3) + std::to_string(i), one(depth + 1));
  }
  return map;
}

Value RandomValues::next(int max_nodes) {
  made_.clear();
  nodes_left_ = max_nodes;
  return one(0);
}

}  // namespace millrace::testing
