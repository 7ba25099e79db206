#include "formats/gguf_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace millrace {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = kGgufDefaultAlignment;

uint64_t aligned(uint64_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

GgufWriter::~GgufWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  (void)::unlink(part_.c_str());
}

void GgufWriter::put_string(std::string& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

bool GgufWriter::has(std::string_view key) const { return std::find(seen_.begin(), seen_.end(), key) != seen_.end(); }

void GgufWriter::add_key(std::string_view key, GgufType type) {
  CHECK(!has(key) && file_ == nullptr);
  seen_.emplace_back(key);
  put_string(keys_, key);
  append(keys_, static_cast<uint32_t>(type));
}

void GgufWriter::add_string(std::string_view key, std::string_view text) {
  add_key(key, GgufType::kString);
  put_string(keys_, text);
}

void GgufWriter::add_u32(std::string_view key, uint32_t value) {
  add_key(key, GgufType::kU32);
  append(keys_, value);
}

void GgufWriter::add_i32(std::string_view key, int32_t value) {
  add_key(key, GgufType::kI32);
  append(keys_, value);
}

void GgufWriter::add_f32(std::string_view key, float value) {
  add_key(key, GgufType::kF32);
  append(keys_, value);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  add_key(key, GgufType::kBool);
  append(keys_, static_cast<uint8_t>(value));
}

void GgufWriter::add_strings(std::string_view key, std::span<const std::string> texts) {
  add_key(key, GgufType::kArray);
  append(keys_, static_cast<uint32_t>(GgufType::kString));
  append(keys_, static_cast<uint64_t>(texts.size()));
  for (const std::string& text : texts) put_string(keys_, text);
}

void GgufWriter::add_i32s(std::string_view key, std::span<const int32_t> values) {
  add_value(key, {.type = GgufType::kI32, .is_array = true, .count = values.size(), .bytes = std::as_bytes(values)});
}

void GgufWriter::add_f32s(std::string_view key, std::span<const float> values) {
  add_value(key, {.type = GgufType::kF32, .is_array = true, .count = values.size(), .bytes = std::as_bytes(values)});
}

void GgufWriter::add_value(std::string_view key, const GgufValue& value) {
  add_key(key, value.is_array ? GgufType::kArray : value.type);
  if (value.is_array) {
    append(keys_, static_cast<uint32_t>(value.type));
    append(keys_, value.count);
  }
  for (std::string_view text : value.strings) put_string(keys_, text);
  keys_.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

void GgufWriter::add_tensor(std::string_view name, DType dtype, const Shape& shape) {
  const std::optional<uint32_t> type = gguf_tensor_type(dtype);
  CHECK(type && file_ == nullptr && shape.rank() <= static_cast<int>(kGgufMaxDims));
  CHECK(name.size() <= kGgufMaxTensorNameBytes);
  const uint64_t begin = extents_.empty() ? 0 : aligned(extents_.back().second);
  extents_.emplace_back(begin, begin + storage_bytes(dtype, shape.elements()));
  put_string(infos_, name);
  append(infos_, static_cast<uint32_t>(shape.rank()));
  for (int i = shape.rank(); i-- > 0;) append(infos_, static_cast<uint64_t>(shape[i]));
  append(infos_, *type);
  append(infos_, begin);
}

Status GgufWriter::put(const void* bytes, std::size_t size) {
  if (size > 0 && std::fwrite(bytes, 1, size, file_.get()) != size) {
    return error(StatusCode::kResourceExhausted, "{}: {} after {} bytes; wanted space for the file", part_,
                 std::strerror(errno), written_);
  }
  written_ += size;
  return ok_status();
}

Status GgufWriter::pad_to(uint64_t at) {
  constexpr char kZeros[kAlignment] = {};
  CHECK(at >= written_ && at - written_ < kAlignment);
  return put(kZeros, at - written_);
}

Status GgufWriter::begin(const std::string& path, Existing existing) {
  path_ = path;
  existing_ = existing;
  part_ = fmt::format("{}.{}.part", path, ::getpid());
  file_.reset(std::fopen(part_.c_str(), "wbx"));
  if (file_ == nullptr) {
    return invalid_argument("{}: {}; wanted a new file in a folder that can be written", part_, std::strerror(errno));
  }
  std::string head = "GGUF";
  append(head, kVersion);
  append(head, static_cast<uint64_t>(extents_.size()));
  append(head, static_cast<uint64_t>(seen_.size()));
  RETURN_IF_ERROR(put(head.data(), head.size()));
  RETURN_IF_ERROR(put(keys_.data(), keys_.size()));
  RETURN_IF_ERROR(put(infos_.data(), infos_.size()));
  data_start_ = aligned(written_);
  return pad_to(data_start_);
}

Status GgufWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    CHECK(file_ != nullptr && current_ < extents_.size());
    const uint64_t end = data_start_ + extents_[current_].second;
    const std::size_t step = std::min<uint64_t>(bytes.size(), end - written_);
    RETURN_IF_ERROR(put(bytes.data(), step));
    bytes = bytes.subspan(step);
    if (written_ < end) continue;
    ++current_;
    RETURN_IF_ERROR(pad_to(aligned(written_)));
  }
  return ok_status();
}

Status GgufWriter::finish() {
  CHECK(file_ != nullptr && current_ == extents_.size());
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) {
    return error(StatusCode::kResourceExhausted, "{}: {}; wanted space for the file", part_, std::strerror(errno));
  }
  // Checked here once more: the file may have appeared in the minutes since begin().
  const unsigned int flags = existing_ == Existing::kReplace ? 0 : RENAME_NOREPLACE;
  int renamed = ::renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, path_.c_str(), flags);
  if (renamed != 0 && errno == EINVAL) {  // the file system has no RENAME_NOREPLACE
    renamed = ::link(part_.c_str(), path_.c_str());
    if (renamed == 0) ::unlink(part_.c_str());
  }
  if (renamed != 0) {
    return invalid_argument("{}: {}; wanted a name that can be written", path_, std::strerror(errno));
  }
  file_.reset();
  return ok_status();
}

}  // namespace millrace
