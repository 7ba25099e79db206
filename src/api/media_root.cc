#include "api/media_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "http/target.h"

namespace millrace::api {
namespace {

constexpr std::string_view kScheme = "file:";
constexpr std::size_t kMaxMediaPathBytes = 4096;

// The same for whatever is wrong: which files exist is not a client's to know.
Status no_such_file() { return invalid_argument("there is no such regular file below --media-root, or it is a link"); }

std::vector<std::string> components_of(const std::string& path) {
  std::vector<std::string> out;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) out.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// Opens the last component of `path` below `folder`, -1 where a component is a link, "..", or missing.
int open_below(int folder, const std::string& path) {
  const std::vector<std::string> components = components_of(path);
  if (components.empty()) return -1;
  int current = ::dup(folder);
  for (std::size_t i = 0; i < components.size() && current >= 0; ++i) {
    const FileDescriptor parent(current);
    if (components[i] == ".." || components[i] == ".") return -1;
    const int flags = i + 1 < components.size() ? O_PATH | O_DIRECTORY : O_RDONLY | O_NONBLOCK | O_NOCTTY;
    current = ::openat(parent.get(), components[i].c_str(), flags | O_NOFOLLOW | O_CLOEXEC);
  }
  return current;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

}  // namespace

MediaRoot::~MediaRoot() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

MediaRoot::MediaRoot(MediaRoot&& other) noexcept { *this = std::move(other); }

MediaRoot& MediaRoot::operator=(MediaRoot&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(given_, other.given_);
  std::swap(real_, other.real_);
  return *this;
}

Result<MediaRoot> MediaRoot::open(const std::string& folder) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(folder, failed);
  MediaRoot out;
  if (!failed) out.descriptor_ = ::open(real.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (out.descriptor_ < 0) {
    return invalid_argument("--media-root is '{}': {}; wanted a folder", folder,
                            failed ? failed.message() : std::strerror(errno));
  }
  out.real_ = without_slash(real.string());
  out.given_ = without_slash(std::filesystem::absolute(folder).lexically_normal().string());
  return out;
}

Result<std::string> MediaRoot::path_of(std::string_view url) const {
  CHECK(is_open());
  std::string_view rest = url.substr(std::min(kScheme.size(), url.size()));
  if (rest.starts_with("//localhost/")) rest.remove_prefix(std::string_view("//localhost").size());
  if (rest.starts_with("///")) rest.remove_prefix(2);
  std::string path;
  const bool plain = rest.find_first_of("?#") == std::string_view::npos;
  if (!rest.starts_with('/') || rest.starts_with("//") || rest.size() > kMaxMediaPathBytes || !plain ||
      !http::percent_decode(rest, false, path)) {
    return invalid_argument("'{}' is no path of a file; wanted file:///PATH, with %XX for special characters",
                            url.substr(0, 64));
  }
  for (const std::string& root : {given_, real_}) {
    const std::string below = root == "/" ? root : root + "/";
    if (path.size() > below.size() && path.starts_with(below)) return path.substr(below.size());
  }
  return error(StatusCode::kUnsupported, "'{}' is not below --media-root; wanted a file there", url.substr(0, 64));
}

Result<std::string> MediaRoot::read(const std::string& path, std::size_t max_bytes,
                                    const std::function<Status(std::size_t)>& take_bytes) const {
  const FileDescriptor file(open_below(descriptor_, path));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return no_such_file();
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > max_bytes) {
    return error(StatusCode::kTooLarge, "it has {} bytes; wanted at most {}", size, max_bytes);
  }
  RETURN_IF_ERROR(take_bytes(size));
  std::string out(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t count = ::read(file.get(), out.data() + have, size - have);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return invalid_argument("it changed while it was read; wanted {} bytes, {} came", size, have);
    have += static_cast<std::size_t>(count);
  }
  return out;
}

}  // namespace millrace::api
