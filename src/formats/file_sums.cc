#include "formats/file_sums.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/function_ref.h"
#include "base/xxh3.h"

namespace millrace {
namespace {

constexpr std::size_t kReadBytes = 16u << 20;  // between two calls of the progress

using Advanced = FunctionRef<void(std::size_t bytes)>;

Result<FileSum> read_sum(const std::string& name, const Json& entry) {
  if (!entry.is_object()) return invalid_argument("file '{}' is {}; wanted an object", name, json_type_name(entry));
  if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.')) {
    return invalid_argument("it names the file '{}'; wanted a name in its folder", name.substr(0, 64));
  }
  FileSum out{.name = name};
  int64_t bytes = -1;
  RETURN_IF_ERROR(json_read(entry, "bytes", bytes));
  if (bytes < 0) return invalid_argument("bytes of '{}' are {}; wanted 0 or more", name, bytes);
  out.bytes = static_cast<uint64_t>(bytes);
  ASSIGN_OR_RETURN(out.xxh3, read_hex_sum(entry, "xxh3"));
  return out;
}

uint64_t sum_of(const MappedFile& file, Advanced advanced) {
  StreamChecksum sum;
  for (std::size_t at = 0; at < file.size_bytes(); at += kReadBytes) {
    const std::size_t size = std::min(kReadBytes, file.size_bytes() - at);
    sum.add(file.bytes().data() + at, size);
    advanced(size);
  }
  clear_upper_vectors();
  return sum.value();
}

}  // namespace

Result<uint64_t> read_hex_sum(const Json& object, const char* key) {
  std::string text;
  RETURN_IF_ERROR(json_read(object, key, text));
  uint64_t sum = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data(), end, sum, 16);
  if (text.size() == 16 && code == std::errc() && rest == end) return sum;
  return invalid_argument("{} is '{}'; wanted 16 hexadecimal digits", key, text.substr(0, 64));
}

std::string file_sums_json(const std::vector<FileSum>& files, std::string_view indent) {
  std::string out = "{";
  const char* separator = "\n";
  for (const FileSum& file : files) {
    out += fmt::format("{}{}  ", separator, indent);
    json_append_string(out, file.name);
    out += fmt::format(": {{\"bytes\": {}, \"xxh3\": \"{:016x}\"}}", file.bytes, file.xxh3);
    separator = ",\n";
  }
  return out + fmt::format("\n{}}}", indent);
}

Result<std::vector<FileSum>> read_file_sums(const Json& manifest) {
  const Json* files = json_find(manifest, "files");
  if (files == nullptr || !files->is_object() || files->size() > kMaxSummedFiles) {
    return invalid_argument("files is not there or too large; wanted an object of at most {} files", kMaxSummedFiles);
  }
  std::vector<FileSum> out;
  for (const auto& [name, entry] : files->items()) {
    ASSIGN_OR_RETURN(FileSum file, read_sum(name, entry));
    out.push_back(std::move(file));
  }
  return out;
}

Result<FileSum> sum_file(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return FileSum{std::filesystem::path(path).filename().string(), file.size_bytes(), sum_of(file, [](std::size_t) {})};
}

Status check_file_sums(const std::string& folder, const std::vector<FileSum>& files, const char* manifest,
                       const ProgressFn& progress) {
  uint64_t total = 0, done = 0;
  for (const FileSum& file : files) total += file.bytes;
  for (const FileSum& wanted : files) {
    const std::string path = folder + "/" + wanted.name;
    ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    if (file.size_bytes() != wanted.bytes) {
      return invalid_argument("{} has {} bytes; wanted {}, as {} has it", path, file.size_bytes(), wanted.bytes,
                              manifest);
    }
    const uint64_t seen = sum_of(file, [&](std::size_t bytes) {
      done += bytes;
      if (progress) progress(done, total);
    });
    if (seen == wanted.xxh3) continue;
    return invalid_argument("the checksum of {} is {:016x}; wanted {:016x}, as {} has it", path, seen, wanted.xxh3,
                            manifest);
  }
  return ok_status();
}

}  // namespace millrace
