#include "formats/safetensors_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "formats/mapped_file.h"

namespace millrace {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

Status failed(int number, const std::string& path) {
  const StatusCode code = number == ENOSPC || number == EDQUOT                     ? StatusCode::kResourceExhausted
                          : number == EEXIST                                       ? StatusCode::kConflict
                          : number == ENOENT                                       ? StatusCode::kNotFound
                          : number == EACCES || number == EPERM || number == EROFS ? StatusCode::kPermissionDenied
                                                                                   : StatusCode::kInternal;
  return error(code, "{}: cannot be written: {}", path, std::strerror(number));
}

Status put(std::FILE* file, const void* bytes, std::size_t size, const std::string& path) {
  errno = 0;
  if (size == 0 || std::fwrite(bytes, 1, size, file) == size) return ok_status();
  return failed(errno != 0 ? errno : EIO, path);
}

Status sync(std::FILE* file, const std::string& path) {
  if (std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0) return ok_status();
  return failed(errno, path);
}

}  // namespace

std::string safetensors_header(const std::vector<SafetensorsEntry>& tensors) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : tensors) {
    const uint64_t end = at + storage_bytes(entry.dtype, entry.shape.elements());
    json += ',';
    json_append_string(json, entry.name);
    std::string shape;
    for (int i = 0; i < entry.shape.rank(); ++i) shape += fmt::format("{}{}", i > 0 ? "," : "", entry.shape[i]);
    json += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", dtype_name(entry.dtype), shape, at,
                        end);
    at = end;
  }
  json += '}';
  json.resize((json.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return out + json;
}

Result<SafetensorsFile> SafetensorsFile::create(std::string path, const std::vector<SafetensorsEntry>& tensors) {
  std::FILE* opened = std::fopen(path.c_str(), "wbx");
  if (opened == nullptr) return failed(errno, path);
  SafetensorsFile out(std::move(path), opened);
  const std::string header = safetensors_header(tensors);
  RETURN_IF_ERROR(put(opened, header.data(), header.size(), out.path_));
  for (const SafetensorsEntry& entry : tensors) out.missing_ += storage_bytes(entry.dtype, entry.shape.elements());
  return out;
}

Status SafetensorsFile::write(std::span<const std::byte> bytes) {
  CHECK(bytes.size() <= missing_);
  RETURN_IF_ERROR(put(file_.get(), bytes.data(), bytes.size(), path_));
  missing_ -= bytes.size();
  return ok_status();
}

Status SafetensorsFile::finish() {
  CHECK(missing_ == 0);
  return sync(file_.get(), path_);
}

Status copy_to_disk(const std::string& from, const std::string& to) {
  ASSIGN_OR_RETURN(const MappedFile source, MappedFile::open(from));
  return write_to_disk({reinterpret_cast<const char*>(source.bytes().data()), source.size_bytes()}, to);
}

Status write_to_disk(std::string_view text, const std::string& to) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(to.c_str(), "wbx"), std::fclose);
  if (!file) return failed(errno, to);
  RETURN_IF_ERROR(put(file.get(), text.data(), text.size(), to));
  return sync(file.get(), to);
}

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)::fsync(fd);
  ::close(fd);
}

}  // namespace millrace
