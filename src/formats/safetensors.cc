#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "base/json.h"
#include "base/json_events.h"
#include "base/utf8.h"

namespace millrace {
namespace {

constexpr std::size_t kMaxQuotedBytes = 120;
constexpr int kHeaderDepth = 4;  // one more than the format has, so that the builder refuses what is too deep, by name
// Element types of the format that Millrace has no use for; naming them apart makes the message honest.
constexpr std::array<std::string_view, 14> kUnsupportedDTypes = {
    "U16",         "U32", "U64",     "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ",
    "F8_E5M2FNUZ", "F4",  "F6_E2M3", "F6_E3M2", "C64",     "E8M0",    "F8_E4M3B11FNUZ"};

// Builds the entry list. The JSON has a fixed form of three levels, so the state is one enum and anything else is
// refused where it begins; nothing is kept but what a valid header holds.
class HeaderBuilder : public JsonHandler {
 public:
  explicit HeaderBuilder(SafetensorsHeader& out) : out_(out) {}

  Status null() override { return refuse("null"); }
  Status boolean(bool) override { return refuse("a boolean"); }
  Status real(double, const std::string& text) override { return refuse("the number " + text.substr(0, 40)); }

  Status negative(int64_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) return refuse(std::to_string(value));
    return invalid_argument("{} of {} holds {}; wanted integers >= 0", field_, quoted_name(entry_.name), value);
  }

  Status natural(uint64_t value) override {
    if (state_ == State::kShape) return add_dim(value);
    if (state_ != State::kOffsets) return refuse(std::to_string(value));
    if (offset_count_ >= 2)
      return invalid_argument("data_offsets of {} has over 2 numbers; wanted 2", quoted_name(entry_.name));
    (offset_count_++ == 0 ? entry_.begin : entry_.end) = value;
    return ok_status();
  }

  Status string(std::string&& value) override {
    if (state_ == State::kMetadata) {
      out_.metadata.emplace(std::move(key_), std::move(value));
      return ok_status();
    }
    if (state_ != State::kEntry || field_ != "dtype") return refuse("a string");
    const std::optional<DType> dtype = dtype_from_name(value);
    if (!dtype) return refuse_dtype(value);
    entry_.dtype = *dtype;
    has_dtype_ = true;
    return ok_status();
  }

  Status start_object() override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
      return ok_status();
    }
    if (state_ != State::kTop) return refuse("an object");
    if (key_ == "__metadata__") {
      state_ = State::kMetadata;
      return ok_status();
    }
    if (out_.tensors.size() >= kSafetensorsMaxTensors) {
      return error(StatusCode::kTooLarge, "it holds over {} tensors; wanted at most that", kSafetensorsMaxTensors);
    }
    entry_ = SafetensorsEntry{};
    entry_.name = std::move(key_);
    has_dtype_ = has_shape_ = false;
    offset_count_ = 0;
    field_.clear();
    state_ = State::kEntry;
    return ok_status();
  }

  Status end_object() override {
    if (state_ == State::kEntry) {
      if (!has_dtype_) return invalid_argument("tensor {} has no dtype; wanted one", quoted_name(entry_.name));
      if (!has_shape_) return invalid_argument("tensor {} has no shape; wanted one", quoted_name(entry_.name));
      if (offset_count_ != 2)
        return invalid_argument("tensor {} has no data_offsets; wanted two", quoted_name(entry_.name));
      out_.tensors.push_back(std::move(entry_));
    }
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    return ok_status();
  }

  Status start_array() override {
    if (state_ == State::kEntry && field_ == "shape") {
      state_ = State::kShape;
      has_shape_ = true;
      return ok_status();
    }
    if (state_ == State::kEntry && field_ == "data_offsets") {
      state_ = State::kOffsets;
      return ok_status();
    }
    return refuse("an array");
  }

  Status end_array() override {
    if (state_ == State::kOffsets && offset_count_ != 2) {
      return invalid_argument("data_offsets of {} has {} numbers; wanted 2", quoted_name(entry_.name), offset_count_);
    }
    state_ = State::kEntry;
    return ok_status();
  }

  Status key(std::string&& name) override {
    if (state_ == State::kEntry) {
      if (name != "dtype" && name != "shape" && name != "data_offsets") {
        return invalid_argument("tensor {} has the field {}; wanted dtype, shape and data_offsets",
                                quoted_name(entry_.name), quoted_name(name));
      }
      if ((name == "dtype" && has_dtype_) || (name == "shape" && has_shape_) ||
          (name == "data_offsets" && offset_count_ > 0)) {
        return invalid_argument("tensor {} has {} twice; wanted it once", quoted_name(entry_.name), name);
      }
      field_ = name;
      return ok_status();
    }
    if (state_ == State::kMetadata && out_.metadata.contains(name)) {
      return invalid_argument("__metadata__ has the key {} twice; wanted it once", quoted_name(name));
    }
    if (state_ == State::kTop && !seen_.insert(name).second) {
      return invalid_argument("the name {} stands twice; wanted it once", quoted_name(name));
    }
    key_ = std::move(name);
    return ok_status();
  }

 private:
  enum class State : uint8_t { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kDone };

  // A value of the wrong kind for where it stands.
  Status refuse(std::string_view seen) {
    switch (state_) {
      case State::kMetadata:
        return invalid_argument("__metadata__ key {} holds {}; wanted a string", quoted_name(key_), seen);
      case State::kEntry:
        return invalid_argument("{} of {} is {}; wanted {}", field_, quoted_name(entry_.name), seen,
                                field_ == "dtype" ? "a string" : "an array of integers");
      case State::kShape:
      case State::kOffsets:
        return invalid_argument("{} of {} holds {}; wanted integers >= 0", field_, quoted_name(entry_.name), seen);
      case State::kTop:
        return invalid_argument("entry {} is {}; wanted an object", quoted_name(key_), seen);
      default:
        return invalid_argument("it is {}; wanted a JSON object", seen);
    }
  }

  Status refuse_dtype(const std::string& name) {
    const bool known =
        std::find(kUnsupportedDTypes.begin(), kUnsupportedDTypes.end(), name) != kUnsupportedDTypes.end();
    return error(known ? StatusCode::kUnsupported : StatusCode::kInvalidArgument,
                 "dtype of {} is {}; wanted F32, F16, BF16, F64, I64, I32, I16, I8, U8 or BOOL",
                 quoted_name(entry_.name), quoted_name(name));
  }

  Status add_dim(uint64_t value) {
    if (entry_.shape.rank() >= kMaxDims) {
      return invalid_argument("shape of {} has over {} dimensions; wanted at most {}", quoted_name(entry_.name),
                              kMaxDims, kMaxDims);
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return invalid_argument("shape of {} holds {}; wanted at most {}", quoted_name(entry_.name), value, INT64_MAX);
    }
    entry_.shape.push_back(static_cast<int64_t>(value));
    return ok_status();
  }

  SafetensorsHeader& out_;
  State state_ = State::kStart;
  std::string key_;    // of the top level or of __metadata__
  std::string field_;  // of the entry
  SafetensorsEntry entry_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  int offset_count_ = 0;
  std::unordered_set<std::string> seen_;
};

// Bytes that shape and dtype ask for, or nothing when the product does not fit 63 bits.
std::optional<uint64_t> wanted_bytes(const SafetensorsEntry& entry) {
  int64_t bytes = static_cast<int64_t>(dtype_size(entry.dtype));
  for (int i = 0; i < entry.shape.rank(); ++i) {
    if (__builtin_mul_overflow(bytes, entry.shape[i], &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

Status check_entry(const SafetensorsEntry& entry, uint64_t data_bytes) {
  const std::string name = quoted_name(entry.name);
  if (entry.begin > entry.end) {
    return invalid_argument("data_offsets of {} are [{}, {}]; wanted begin <= end", name, entry.begin, entry.end);
  }
  if (entry.end > data_bytes) {
    return invalid_argument("data_offsets of {} end at {}; wanted at most {}, the bytes of data in the file", name,
                            entry.end, data_bytes);
  }
  const std::optional<uint64_t> wanted = wanted_bytes(entry);
  if (!wanted) {
    return invalid_argument("shape of {} is {} of {}, whose size overflows; wanted {} bytes as in data_offsets", name,
                            entry.shape.to_string(), dtype_name(entry.dtype), entry.end - entry.begin);
  }
  if (*wanted != entry.end - entry.begin) {
    return invalid_argument("data_offsets of {} span {} bytes; wanted {} for shape {} of {}", name,
                            entry.end - entry.begin, *wanted, entry.shape.to_string(), dtype_name(entry.dtype));
  }
  return ok_status();
}

// Sorts by offset and demands that the tensors cover the data exactly.
Status check_cover(std::vector<SafetensorsEntry>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t at = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin < at) {
      return invalid_argument("tensor {} begins at {} and overlaps {}, which ends at {}; wanted no overlap",
                              quoted_name(entry.name), entry.begin, quoted_name(previous->name), at);
    }
    if (entry.begin > at) {
      return invalid_argument("tensor {} begins at {}, leaving a hole; wanted {}, where the bytes before it end",
                              quoted_name(entry.name), entry.begin, at);
    }
    at = entry.end;
    previous = &entry;
  }
  if (at != data_bytes) {
    return invalid_argument("the tensors end at {}; wanted {}, the bytes of data in the file", at, data_bytes);
  }
  return ok_status();
}

// The header's length after all checks that need no JSON.
Result<uint64_t> header_length(std::span<const std::byte> file) {
  if (file.size() < 8) {
    return invalid_argument("not a safetensors file: has {} bytes; wanted at least 8", file.size());
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(file[static_cast<std::size_t>(i)]);
  if (length > kSafetensorsMaxHeaderBytes) {
    return error(StatusCode::kTooLarge, "not a safetensors file: header length is {}; wanted at most {}", length,
                 kSafetensorsMaxHeaderBytes);
  }
  if (length < 2 || length > file.size() - 8) {
    return invalid_argument("not a safetensors file: header length is {}; wanted 2 to {}, the bytes that follow it",
                            length, file.size() - 8);
  }
  return length;
}

Result<SafetensorsHeader> parse(std::span<const std::byte> file) {
  ASSIGN_OR_RETURN(const uint64_t length, header_length(file));
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, length);
  if (text[0] != '{') {
    return invalid_argument("not a safetensors file: header starts with byte 0x{:02x}; wanted '{{'",
                            static_cast<unsigned char>(text[0]));
  }
  SafetensorsHeader header;
  header.data_start = 8 + length;
  HeaderBuilder builder(header);
  RETURN_IF_ERROR(read_json(text, builder, kHeaderDepth).with_prefix("header"));
  const uint64_t data_bytes = file.size() - header.data_start;
  for (const SafetensorsEntry& entry : header.tensors) RETURN_IF_ERROR(check_entry(entry, data_bytes));
  RETURN_IF_ERROR(check_cover(header.tensors, data_bytes));
  return header;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view path) {
  try {
    Result<SafetensorsHeader> header = parse(file);
    if (!header.ok()) return header.status().with_prefix(path);
    return header;
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "{}: no memory left to read its header", path);
  } catch (const std::exception& e) {
    return internal_error("{}: header: {}", path, e.what());
  }
}

std::string quoted_name(std::string_view name) {
  std::string out;
  if (name.size() <= kMaxQuotedBytes) {
    json_append_string(out, name);
    return out;
  }
  json_append_string(out, utf8_prefix(name, kMaxQuotedBytes));
  return out + fmt::format("... ({} bytes)", name.size());
}

}  // namespace millrace
