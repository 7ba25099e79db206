#include "stages/kv_disk/page_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/xxh3.h"
#include "stages/kv_disk/limits.h"

namespace millrace::kv_disk {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "files hold numbers as memory does");

constexpr std::string_view kUnfinished = "unfinished-";
constexpr std::size_t kFolderDigits = 2;  // of a digest's 64: 256 folders, so that none has too many files

// As it lies in the file (page_folder.h): no padding, and numbers of the machine, which is little-endian.
struct Header {
  char magic[8] = {'M', 'R', 'K', 'V', 'P', 'A', 'G', 'E'};
  uint32_t version = 1;
  uint32_t tokens = 0;
  uint64_t page_bytes = 0;
  uint64_t checksum = 0;
  BlockDigest parent{};
};
static_assert(sizeof(Header) == 64);

// Parent and tokens too: a page with other tokens than its name has would give wrong answers without a sign.
uint64_t checksum_of(const PageName& name, std::span<const std::byte> bytes) {
  StreamChecksum sum;
  sum.add(name.parent.data(), name.parent.size());
  sum.add(name.tokens.data(), name.tokens.size() * sizeof(int32_t));
  sum.add(bytes.data(), bytes.size());
  return sum.value();
}

Header header_of(const PageName& name, std::span<const std::byte> bytes) {
  Header header;
  header.tokens = static_cast<uint32_t>(name.tokens.size());
  header.page_bytes = bytes.size();
  header.checksum = checksum_of(name, bytes);
  header.parent = name.parent;
  return header;
}

// read(2) may give less than was asked for; 0 is the end of the file.
bool read_all(int fd, void* to, std::size_t size) {
  for (std::size_t at = 0; at < size;) {
    const ssize_t count = ::read(fd, static_cast<char*>(to) + at, size - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += static_cast<std::size_t>(count);
  }
  return true;
}

bool write_all(int fd, const void* from, std::size_t size) {
  for (std::size_t at = 0; at < size;) {
    const ssize_t count = ::write(fd, static_cast<const char*>(from) + at, size - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += static_cast<std::size_t>(count);
  }
  return true;
}

// What is in the file, compared with what was asked for.
Status read_page(int fd, const PageName& name, std::span<std::byte> to) {
  struct stat info {};
  const std::size_t token_bytes = name.tokens.size() * sizeof(int32_t);
  const std::size_t size = sizeof(Header) + token_bytes + to.size();
  // The size first: a file that another version or a crash has left is refused before anything is read. Not a regular
  // file: a FIFO would block.
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || std::cmp_not_equal(info.st_size, size)) {
    return error(StatusCode::kUnavailable, "{} bytes; wanted a file of {}", info.st_size, size);
  }
  Header header;
  std::vector<int32_t> tokens(name.tokens.size());
  if (!read_all(fd, &header, sizeof header) || !read_all(fd, tokens.data(), token_bytes) ||
      !read_all(fd, to.data(), to.size())) {
    return error(StatusCode::kUnavailable, "not readable: {}", std::strerror(errno));
  }
  // Checked by itself beside the digest of the name, which is cryptographic: a file that was renamed by hand is found.
  if (tokens != name.tokens) return error(StatusCode::kUnavailable, "other tokens than its name has");
  // Magic, version, sizes, parent and checksum in one comparison.
  const Header wanted = header_of(name, to);
  if (std::memcmp(&header, &wanted, sizeof header) == 0) return ok_status();
  return error(StatusCode::kUnavailable, "checksum {:016x}; wanted {:016x}", header.checksum, wanted.checksum);
}

Status check_folder(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return invalid_argument("--kv-disk-dir {} is not a folder that can be read; wanted one", path);
  }
  // Pages are prompts in a form that can be read back. And a user who may write here could put pages of a choice under
  // the digests of a prompt.
  if (info.st_uid != ::geteuid()) {
    return invalid_argument("--kv-disk-dir {} is user {}'s; wanted a folder of the server's own user, {}", path,
                            info.st_uid, ::geteuid());
  }
  if ((info.st_mode & 0077) == 0) return ok_status();
  return invalid_argument("--kv-disk-dir {} has mode {:04o}; wanted 0700: its files are readable prompts", path,
                          info.st_mode & 07777);
}

// ---- names, as file_of() and write() make them. All other files are the user's: they are neither counted nor removed.

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == text.npos; }
bool is_folder_name(std::string_view name) { return name.size() == kFolderDigits && is_hex(name); }
bool is_page_name(std::string_view name) {
  return name.size() == 2 * sizeof(BlockDigest) - kFolderDigits && is_hex(name);
}
bool is_unfinished_name(std::string_view name) {
  if (!name.starts_with(kUnfinished)) return false;
  const std::string_view rest = name.substr(kUnfinished.size());
  const std::size_t dash = rest.find('-');
  return dash != rest.npos && is_hex(rest.substr(0, dash)) && is_hex(rest.substr(dash + 1));
}

struct PageFile {
  fs::file_time_type used;
  uint64_t bytes;
  fs::path path;
};

// nullopt: it is gone, or no regular file.
std::optional<PageFile> look_at(const fs::directory_entry& entry) {
  std::error_code problem;
  if (entry.is_symlink(problem) || !entry.is_regular_file(problem)) return std::nullopt;
  const PageFile file{entry.last_write_time(problem), entry.file_size(problem), entry.path()};
  return problem ? std::nullopt : std::optional(file);
}

void add_pages_of(const fs::directory_entry& folder, std::vector<PageFile>& found) {
  std::error_code problem;
  if (folder.is_symlink(problem)) return;
  for (fs::directory_iterator it(folder.path(), problem), end; !problem && it != end; it.increment(problem)) {
    if (!is_page_name(it->path().filename().native())) continue;
    if (auto file = look_at(*it)) found.push_back(*std::move(file));
  }
}

void remove_if_stale(const fs::directory_entry& entry) {
  const auto file = look_at(entry);
  // Not at once: another process may be writing it.
  if (!file || fs::file_time_type::clock::now() - file->used <= std::chrono::seconds(kStaleFileS)) return;
  std::error_code problem;
  fs::remove(file->path, problem);
}

}  // namespace

PageFolder::PageFolder(std::string path, uint64_t max_bytes) : path_(std::move(path)), max_bytes_(max_bytes) {
  std::random_device random;
  writer_ = uint64_t{random()} << 32 | random();
}

Result<std::unique_ptr<PageFolder>> PageFolder::open(std::string path, uint64_t max_bytes) {
  std::error_code problem;
  // Folders above it with the umask's mode, it itself with 0700.
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty()) fs::create_directories(parent, problem);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return invalid_argument("--kv-disk-dir {} cannot be made: {}", path, std::strerror(errno));
  }
  RETURN_IF_ERROR(check_folder(path));
  std::unique_ptr<PageFolder> folder(new PageFolder(std::move(path), max_bytes));
  // Counts what earlier processes have left, and applies a limit that may be lower than theirs.
  folder->tidy();
  return folder;
}

std::string PageFolder::file_of(const BlockDigest& digest) const {
  std::string hex;
  for (const uint8_t byte : digest) fmt::format_to(std::back_inserter(hex), "{:02x}", byte);
  return fmt::format("{}/{}/{}", path_, hex.substr(0, kFolderDigits), hex.substr(kFolderDigits));
}

bool PageFolder::contains(const BlockDigest& digest) const { return ::access(file_of(digest).c_str(), R_OK) == 0; }

bool PageFolder::mark_used(const BlockDigest& digest) const {
  // Both times are set to now (utimensat(2): times is null). The time of modification is what tidy() sorts by: access
  // times depend on how the file system is mounted.
  return ::utimensat(AT_FDCWD, file_of(digest).c_str(), nullptr, 0) == 0;
}

Status PageFolder::read(const PageName& name, std::span<std::byte> to) {
  const std::string path = file_of(name.digest);
  // O_NOFOLLOW: no link leads out of the folder. Another process may remove the file at any moment, which is no fault;
  // an open one is read to its end all the same.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && errno == ENOENT) return error(StatusCode::kNotFound, "{}: no such page", path);
  if (!file.valid()) return error(StatusCode::kUnavailable, "{}: {}", path, std::strerror(errno));
  if (const Status status = read_page(file.get(), name, to); !status.ok()) {
    // It would be found damaged each time, and the page would never be written again (write() leaves what is there).
    ::unlink(path.c_str());
    return status.with_prefix(fmt::format("{} is damaged, and was removed", path));
  }
  (void)::futimens(file.get(), nullptr);  // used now
  return ok_status();
}

Status PageFolder::write(const PageName& name, std::span<const std::byte> bytes) {
  // Pages with the same name have the same bytes, whichever process has computed them.
  if (contains(name.digest)) return ok_status();
  const std::string path = file_of(name.digest);
  // In the folder itself, so that rename() does not cross file systems. Random, as the process number would not keep
  // containers apart: each one's server may be process 1, and so may the one before it that a crash has ended.
  const std::string unfinished = fmt::format("{}/{}{:016x}-{}", path_, kUnfinished, writer_, written_++);
  FileDescriptor file(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  // Nothing to remove: a file of that name would be another process's, which may be writing it.
  if (!file.valid()) return error(StatusCode::kUnavailable, "{}: {}", unfinished, std::strerror(errno));
  const auto failed = [&](const std::string& what) {
    // unlink() below may set it anew.
    const int reason = errno;
    ::unlink(unfinished.c_str());
    return error(StatusCode::kUnavailable, "{}: {}", what, std::strerror(reason));
  };
  // Not synced: a page that is lost in a crash is computed again, and one that is torn has a wrong checksum.
  const Header header = header_of(name, bytes);
  if (!write_all(file.get(), &header, sizeof header) ||
      !write_all(file.get(), name.tokens.data(), name.tokens.size() * sizeof(int32_t)) ||
      !write_all(file.get(), bytes.data(), bytes.size())) {
    return failed(unfinished);
  }
  file.reset();
  const std::string folder = path.substr(0, path.rfind('/'));
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed(folder);
  // Readers see all of the file or none of it (rename(2)).
  if (::rename(unfinished.c_str(), path.c_str()) != 0) return failed(path);
  // About: other processes add and remove files too; tidy() counts anew.
  bytes_.fetch_add(sizeof(Header) + name.tokens.size() * sizeof(int32_t) + bytes.size(), std::memory_order_relaxed);
  if (this->bytes() > max_bytes_) tidy();
  return ok_status();
}

void PageFolder::tidy() {
  std::error_code problem;  // other processes remove files too
  std::vector<PageFile> found;
  for (fs::directory_iterator it(path_, problem), end; !problem && it != end; it.increment(problem)) {
    const std::string name = it->path().filename();
    if (is_folder_name(name)) add_pages_of(*it, found);
    if (is_unfinished_name(name)) remove_if_stale(*it);
  }
  uint64_t sum = 0;
  for (const PageFile& file : found) sum += file.bytes;
  if (sum > max_bytes_) {  // a tenth more, so that this is not done for each page
    std::sort(found.begin(), found.end(), [](const PageFile& a, const PageFile& b) { return a.used < b.used; });
    // Any process may remove any file. A page whose beginning is gone is of no use until that is saved again, and ages
    // too.
    for (const PageFile& file : found) {
      if (sum <= max_bytes_ / 10 * 9) break;
      std::error_code gone;
      if (fs::remove(file.path, gone)) sum -= file.bytes;
    }
  }
  bytes_.store(sum, std::memory_order_relaxed);
}

}  // namespace millrace::kv_disk
