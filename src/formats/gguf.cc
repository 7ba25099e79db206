#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <tuple>
#include <unordered_set>

#include "formats/safetensors.h"

static_assert(std::endian::native == std::endian::little, "values are read as the file holds them");

namespace millrace {
namespace {

constexpr std::string_view kMagic = "GGUF";

struct TensorType {
  uint32_t number;
  std::string_view name;
  std::optional<DType> dtype;  // absent: the format knows it, this program does not
};
constexpr std::array<TensorType, 35> kTensorTypes = {{
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", {}},
    {6, "Q5_0", {}},
    {7, "Q5_1", {}},
    {8, "Q8_0", DType::kQ8_0},
    {9, "Q8_1", {}},
    {10, "Q2_K", {}},
    {11, "Q3_K", {}},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    {15, "Q8_K", {}},
    {16, "IQ2_XXS", {}},
    {17, "IQ2_XS", {}},
    {18, "IQ3_XXS", {}},
    {19, "IQ1_S", {}},
    {20, "IQ4_NL", {}},
    {21, "IQ3_S", {}},
    {22, "IQ2_S", {}},
    {23, "IQ4_XS", {}},
    {24, "I8", DType::kI8},
    {25, "I16", DType::kI16},
    {26, "I32", DType::kI32},
    {27, "I64", DType::kI64},
    {28, "F64", DType::kF64},
    {29, "IQ1_M", {}},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0", {}},
    {35, "TQ2_0", {}},
    {39, "MXFP4", {}},
    {40, "NVFP4", {}},
    {41, "Q1_0", {}},
    {42, "Q2_0", {}},
}};
constexpr std::string_view kReadTypes = "F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K, F64, I8, I16, I32 or I64";

// Reads from the front; every read checks what is left first.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> file) : file_(file) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }

  template <typename T>
  Status read(std::string_view what, T& out) {
    if (left() < sizeof(T)) return breaks_off(what, sizeof(T));
    std::memcpy(&out, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return ok_status();
  }
  Status take(std::string_view what, uint64_t size, std::span<const std::byte>& out) {
    if (left() < size) return breaks_off(what, size);
    out = file_.subspan(at_, size);
    at_ += size;
    return ok_status();
  }
  Status string(std::string_view what, uint64_t max_bytes, std::string_view& out) {
    uint64_t size = 0;
    RETURN_IF_ERROR(read(what, size));
    if (size > max_bytes) {
      return error(StatusCode::kTooLarge, "{} has {} bytes at byte {}; wanted at most {}", what, size, at_, max_bytes);
    }
    std::span<const std::byte> bytes;
    RETURN_IF_ERROR(take(what, size, bytes));
    out = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    return ok_status();
  }

 private:
  Status breaks_off(std::string_view what, uint64_t size) const {
    return invalid_argument("breaks off in {} at byte {}: {} bytes are left; wanted {}", what, at_, left(), size);
  }

  std::span<const std::byte> file_;
  uint64_t at_ = 0;
};

bool known_type(uint32_t type) { return type <= static_cast<uint32_t>(GgufType::kF64); }

Status check_bools(const GgufValue& value) {
  for (const std::byte byte : value.bytes) {
    if (byte > std::byte{1}) return invalid_argument("holds the bool {}; wanted 0 or 1", static_cast<int>(byte));
  }
  return ok_status();
}

Status read_strings(Cursor& cursor, GgufValue& value) {
  // A string takes 8 bytes at least, so that what is reserved is backed by the file.
  if (value.count > cursor.left() / sizeof(uint64_t)) {
    return invalid_argument("has {} strings, but {} bytes are left; wanted at least 8 for each", value.count,
                            cursor.left());
  }
  value.strings.resize(value.count);
  for (std::string_view& text : value.strings) RETURN_IF_ERROR(cursor.string("a string", kGgufMaxStringBytes, text));
  return ok_status();
}

Status read_value(Cursor& cursor, GgufValue& value) {
  uint32_t type = 0;
  RETURN_IF_ERROR(cursor.read("a value's type", type));
  if (type == static_cast<uint32_t>(GgufType::kArray)) {
    value.is_array = true;
    RETURN_IF_ERROR(cursor.read("an array's type", type));
    RETURN_IF_ERROR(cursor.read("an array's length", value.count));
    if (type == static_cast<uint32_t>(GgufType::kArray)) {
      return error(StatusCode::kUnsupported, "is an array of arrays; wanted an array of plain values");
    }
    if (value.count > kGgufMaxArrayElements) {
      return error(StatusCode::kTooLarge, "has {} elements; wanted at most {}", value.count, kGgufMaxArrayElements);
    }
  }
  if (!known_type(type)) return invalid_argument("is of type {}; wanted 0 to 12", type);
  value.type = static_cast<GgufType>(type);
  if (value.type == GgufType::kString) return read_strings(cursor, value);
  RETURN_IF_ERROR(cursor.take("a value", value.count * gguf_type_size(value.type), value.bytes));
  return value.type == GgufType::kBool ? check_bools(value) : ok_status();
}

Status read_metadata(Cursor& cursor, uint64_t count, GgufHeader& header) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string_view key;
    RETURN_IF_ERROR(cursor.string("a key", kGgufMaxKeyBytes, key));
    if (key.empty()) return invalid_argument("key {} is empty; wanted a name", i);
    const auto [at, added] = header.metadata.try_emplace(std::string(key));
    if (!added) return invalid_argument("has the key {} twice; wanted it once", quoted_name(key));
    if (const Status status = read_value(cursor, at->second); !status.ok()) {
      return status.with_prefix("key " + quoted_name(key));
    }
  }
  return ok_status();
}

Status read_alignment(GgufHeader& header) {
  const GgufValue* value = header.find("general.alignment");
  if (value == nullptr) return ok_status();
  const std::optional<int64_t> alignment = value->is_array ? std::nullopt : value->integer();
  if (!alignment) return invalid_argument("general.alignment is of type {}; wanted u32", value->type_text());
  if (*alignment < 1 || *alignment > kGgufMaxAlignment || (*alignment & (*alignment - 1)) != 0) {
    return invalid_argument("general.alignment is {}; wanted a power of two up to {}", *alignment, kGgufMaxAlignment);
  }
  header.alignment = static_cast<uint32_t>(*alignment);
  return ok_status();
}

Status read_dtype(uint32_t number, DType& out) {
  for (const TensorType& type : kTensorTypes) {
    if (type.number != number) continue;
    if (!type.dtype) return error(StatusCode::kUnsupported, "is of type {}; wanted {}", type.name, kReadTypes);
    out = *type.dtype;
    return ok_status();
  }
  return invalid_argument("is of the unknown type {}; wanted {}", number, kReadTypes);
}

// The bytes that type and extents ask for.
Status measure(const std::array<uint64_t, kGgufMaxDims>& extents, uint32_t dims, GgufTensor& tensor) {
  int64_t elements = 1;
  for (uint32_t i = dims; i-- > 0;) {
    if (extents[i] > static_cast<uint64_t>(INT64_MAX) ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(extents[i]), &elements)) {
      return invalid_argument("has {} elements in dimension {}; wanted a size that fits 63 bits", extents[i], i);
    }
    tensor.shape.push_back(static_cast<int64_t>(extents[i]));
  }
  const BlockSize block = dtype_block(tensor.dtype);
  if (block.elements > 0 && (dims == 0 || extents[0] % static_cast<uint64_t>(block.elements) != 0)) {
    return invalid_argument("has rows of {} elements; wanted a multiple of {}, the block of {}",
                            dims == 0 ? 1 : extents[0], block.elements, dtype_name(tensor.dtype));
  }
  // No element takes more than 8 bytes.
  if (elements > INT64_MAX / 8) return invalid_argument("has {} elements; wanted a size that fits 63 bits", elements);
  tensor.end = storage_bytes(tensor.dtype, elements);
  return ok_status();
}

Status read_tensor(Cursor& cursor, const GgufHeader& header, GgufTensor& tensor) {
  uint32_t dims = 0;
  RETURN_IF_ERROR(cursor.read("a tensor's dimensions", dims));
  if (dims > kGgufMaxDims) return invalid_argument("has {} dimensions; wanted at most {}", dims, kGgufMaxDims);
  std::array<uint64_t, kGgufMaxDims> extents{};
  for (uint32_t i = 0; i < dims; ++i) RETURN_IF_ERROR(cursor.read("a tensor's extents", extents[i]));
  uint32_t type = 0;
  RETURN_IF_ERROR(cursor.read("a tensor's type", type));
  RETURN_IF_ERROR(cursor.read("a tensor's offset", tensor.begin));
  RETURN_IF_ERROR(read_dtype(type, tensor.dtype));
  RETURN_IF_ERROR(measure(extents, dims, tensor));
  if (tensor.begin % header.alignment != 0) {
    return invalid_argument("begins at {}; wanted a multiple of general.alignment, which is {}", tensor.begin,
                            header.alignment);
  }
  return ok_status();
}

Status read_tensors(Cursor& cursor, uint64_t count, GgufHeader& header) {
  std::unordered_set<std::string_view> seen;
  for (uint64_t i = 0; i < count; ++i) {
    std::string_view name;
    RETURN_IF_ERROR(cursor.string("a tensor's name", kGgufMaxTensorNameBytes, name));
    if (name.empty()) return invalid_argument("the name of tensor {} is empty; wanted a name", i);
    if (!seen.insert(name).second)
      return invalid_argument("has the tensor {} twice; wanted it once", quoted_name(name));
    GgufTensor tensor;
    tensor.name = name;
    if (const Status status = read_tensor(cursor, header, tensor); !status.ok()) {
      return status.with_prefix("tensor " + quoted_name(name));
    }
    header.tensors.push_back(std::move(tensor));
  }
  return ok_status();
}

// Sorts by offset; until here `end` is a length.
Status resolve_extents(uint64_t data_bytes, std::vector<GgufTensor>& tensors) {
  for (GgufTensor& tensor : tensors) {
    if (tensor.begin > data_bytes || tensor.end > data_bytes - tensor.begin) {
      return invalid_argument("tensor {} takes {} bytes from {}; wanted at most {}, the bytes of data in the file",
                              quoted_name(tensor.name), tensor.end, tensor.begin, data_bytes);
    }
    tensor.end += tensor.begin;
  }
  std::sort(tensors.begin(), tensors.end(), [](const GgufTensor& a, const GgufTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].begin >= tensors[i - 1].end) continue;
    return invalid_argument("tensor {} begins at {} and overlaps {}, which ends at {}; wanted no overlap",
                            quoted_name(tensors[i].name), tensors[i].begin, quoted_name(tensors[i - 1].name),
                            tensors[i - 1].end);
  }
  return ok_status();
}

Status check_counts(uint64_t tensors, uint64_t keys, uint64_t bytes_left) {
  constexpr uint64_t kLeastTensorBytes = 24;  // empty name, no dimensions
  constexpr uint64_t kLeastKeyBytes = 13;     // empty key, one byte
  if (tensors > kGgufMaxTensors || keys > kGgufMaxKeys) {
    return error(StatusCode::kTooLarge, "claims {} tensors and {} keys; wanted at most {} and {}", tensors, keys,
                 kGgufMaxTensors, kGgufMaxKeys);
  }
  if (tensors * kLeastTensorBytes + keys * kLeastKeyBytes > bytes_left) {
    return invalid_argument("claims {} tensors and {} keys, but {} bytes are left; wanted more bytes", tensors, keys,
                            bytes_left);
  }
  return ok_status();
}

Result<GgufHeader> parse(std::span<const std::byte> file) {
  if (!has_gguf_magic(file)) {
    return invalid_argument(
        "not a GGUF file: begins with {}; wanted \"GGUF\"",
        quoted_name({reinterpret_cast<const char*>(file.data()), std::min<size_t>(4, file.size())}));
  }
  Cursor cursor(file);
  GgufHeader header;
  uint32_t magic = 0;
  uint64_t tensors = 0, keys = 0;
  RETURN_IF_ERROR(cursor.read("the magic", magic));
  RETURN_IF_ERROR(cursor.read("the version", header.version));
  if (header.version != 2 && header.version != 3) {
    const bool big = header.version != 0 && (header.version & 0xFFFF) == 0;
    return error(StatusCode::kUnsupported, "is of version {}{}; wanted 2 or 3, little-endian", header.version,
                 big ? " (a big-endian file?)" : "");
  }
  RETURN_IF_ERROR(cursor.read("the tensor count", tensors));
  RETURN_IF_ERROR(cursor.read("the key count", keys));
  RETURN_IF_ERROR(check_counts(tensors, keys, cursor.left()));
  RETURN_IF_ERROR(read_metadata(cursor, keys, header));
  RETURN_IF_ERROR(read_alignment(header));
  RETURN_IF_ERROR(read_tensors(cursor, tensors, header));
  // A file without tensors may end before the padding.
  header.data_start = (cursor.at() + header.alignment - 1) / header.alignment * header.alignment;
  const uint64_t data_bytes = header.data_start < file.size() ? file.size() - header.data_start : 0;
  RETURN_IF_ERROR(resolve_extents(data_bytes, header.tensors));
  return header;
}

template <typename T>
T element(const GgufValue& value, uint64_t i) {
  T out;
  std::memcpy(&out, value.bytes.data() + i * sizeof(T), sizeof(T));
  return out;
}

Status wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) {
  return invalid_argument("{} is of type {}; wanted {}", key, value.type_text(), wanted);
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                       "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

std::size_t gguf_type_size(GgufType type) {
  constexpr std::array<std::size_t, 13> kSizes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<std::size_t>(type)];
}

std::optional<int64_t> GgufValue::integer(uint64_t i) const {
  if (i >= count) return std::nullopt;
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return element<uint8_t>(*this, i);
    case GgufType::kI8:
      return element<int8_t>(*this, i);
    case GgufType::kU16:
      return element<uint16_t>(*this, i);
    case GgufType::kI16:
      return element<int16_t>(*this, i);
    case GgufType::kU32:
      return element<uint32_t>(*this, i);
    case GgufType::kI32:
      return element<int32_t>(*this, i);
    case GgufType::kI64:
      return element<int64_t>(*this, i);
    case GgufType::kU64: {
      const auto value = element<uint64_t>(*this, i);
      return value <= static_cast<uint64_t>(INT64_MAX) ? std::optional<int64_t>(static_cast<int64_t>(value))
                                                       : std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::real(uint64_t i) const {
  if (i >= count || type == GgufType::kBool) return std::nullopt;
  if (type == GgufType::kF32) return element<float>(*this, i);
  if (type == GgufType::kF64) return element<double>(*this, i);
  const std::optional<int64_t> integral = integer(i);
  return integral ? std::optional<double>(static_cast<double>(*integral)) : std::nullopt;
}

std::string GgufValue::type_text() const {
  return is_array ? fmt::format("array of {} {}", count, gguf_type_name(type)) : std::string(gguf_type_name(type));
}

const GgufValue* GgufHeader::find(std::string_view key) const {
  const auto at = metadata.find(key);
  return at == metadata.end() ? nullptr : &at->second;
}

const GgufTensor* GgufHeader::find_tensor(std::string_view name) const {
  const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const GgufTensor& t) { return t.name == name; });
  return at == tensors.end() ? nullptr : &*at;
}

Result<GgufHeader> parse_gguf(std::span<const std::byte> file, std::string_view path) {
  try {
    Result<GgufHeader> header = parse(file);
    if (!header.ok()) return header.status().with_prefix(path);
    return header;
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "{}: no memory left to read its header", path);
  }
}

bool has_gguf_magic(std::span<const std::byte> file) {
  return file.size() >= kMagic.size() && std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<int64_t> fallback, int64_t low,
                 int64_t high, int64_t& out) {
  const std::string wanted = fmt::format("a whole number from {} to {}", low, high);
  const GgufValue* value = header.find(key);
  if (value == nullptr && !fallback) return invalid_argument("{} is missing; wanted {}", key, wanted);
  if (value != nullptr && (value->is_array || value->type == GgufType::kBool || !value->integer())) {
    return wrong_type(key, *value, wanted);
  }
  out = value == nullptr ? *fallback : *value->integer();
  if (out < low || out > high) return invalid_argument("{} is {}; wanted {} to {}", key, out, low, high);
  return ok_status();
}

Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<double> fallback, double& out) {
  const GgufValue* value = header.find(key);
  if (value == nullptr && !fallback) return invalid_argument("{} is missing; wanted a number", key);
  if (value != nullptr && (value->is_array || !value->real())) return wrong_type(key, *value, "a number");
  out = value == nullptr ? *fallback : *value->real();
  return ok_status();
}

Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<bool> fallback, bool& out) {
  const GgufValue* value = header.find(key);
  if (value == nullptr && !fallback) return invalid_argument("{} is missing; wanted a bool", key);
  if (value != nullptr && (value->is_array || value->type != GgufType::kBool)) return wrong_type(key, *value, "bool");
  out = value == nullptr ? *fallback : *value->integer() != 0;
  return ok_status();
}

Status gguf_read(const GgufHeader& header, std::string_view key, std::optional<std::string_view> fallback,
                 std::string_view& out) {
  const GgufValue* value = header.find(key);
  if (value == nullptr && !fallback) return invalid_argument("{} is missing; wanted a string", key);
  if (value != nullptr && (value->is_array || value->type != GgufType::kString))
    return wrong_type(key, *value, "string");
  out = value == nullptr ? *fallback : value->strings[0];
  return ok_status();
}

std::optional<uint32_t> gguf_tensor_type(DType dtype) {
  for (const TensorType& type : kTensorTypes) {
    if (type.dtype == dtype) return type.number;
  }
  return std::nullopt;
}

}  // namespace millrace
