#include "hub/blob_download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <vector>

#include "formats/safetensors.h"
#include "hub/file_lock.h"

namespace millrace::hub {
namespace {

constexpr std::size_t kReadBytes = 1 << 20;
constexpr mode_t kBlobMode = 0666;  // less the umask, as of every file

struct ContentRange {
  uint64_t first = 0;
  std::optional<uint64_t> total;
};

// "bytes 100-199/200", "bytes 100-199/*".
std::optional<ContentRange> parse_range(std::string_view text) {
  ContentRange out;
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const char* end = text.data() + text.size();
  // RFC 9110, section 14.4. Where the range ends is not compared: on_body() counts the bytes.
  const auto [dash, bad] = std::from_chars(text.data(), end, out.first);
  const std::size_t slash = text.find('/');
  if (bad != std::errc() || dash == end || *dash != '-' || slash == std::string_view::npos) return std::nullopt;
  uint64_t total = 0;
  if (std::from_chars(text.data() + slash + 1, end, total).ec == std::errc()) out.total = total;
  return out;
}

}  // namespace

BlobDownload::BlobDownload(const Hub& hub, const Cache& cache, const Repository& repository, const RemoteFile& file,
                           Arrived arrived)
    : hub_(hub),
      repository_(repository),
      file_(file),
      arrived_(std::move(arrived)),
      what_(repository.name + "/" + file.name),
      blob_(cache.blob(repository.name, file.etag)),
      incomplete_(blob_ + ".incomplete"),
      // The very file that the Hugging Face tools lock for this blob, so that the two never write to one `.incomplete`
      // at once.
      lock_(cache.locks(repository.name) + "/" + file.etag + ".lock") {}

BlobDownload::~BlobDownload() {
  if (fd_ >= 0) ::close(fd_);
}

// The size alone: this program gives a blob its name when its checksum was right, and to sum tens of gigabytes at each
// pull would take minutes.
bool BlobDownload::is_complete() const {
  struct stat info {};
  return ::stat(blob_.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         static_cast<uint64_t>(info.st_size) == file_.size;
}

Status BlobDownload::run(Connection& connection) {
  if (!is_complete()) {
    ASSIGN_OR_RETURN(
        const FileLock lock,
        FileLock::wait(lock_, false, fmt::format("{}: another process is getting it; waiting", what_), hub_.control()));
    // Asked again under the lock: the process that held it may have brought the file.
    if (!is_complete()) {
      RETURN_IF_ERROR(open_incomplete());
      const bool resumed = size_ > 0;
      const Status status = fetch(connection);
      // Any other error keeps what is there, and the next pull goes on from it: a certificate that fails, a refused
      // redirect or the page of a captive portal is no statement about these bytes.
      if (!resumed || !unfit_) return status;
      // What was left there may have been spoilt; the hub's own bytes are another matter.
      hub_.control().note(status.message() + "; getting it from the beginning");
      ::unlink(incomplete_.c_str());
      RETURN_IF_ERROR(open_incomplete());
      return fetch(connection);
    }
  }
  arrived_(static_cast<int64_t>(file_.size));
  return ok_status();
}

Status BlobDownload::fetch(Connection& connection) {
  RETURN_IF_ERROR(with_retries(hub_.policy(), hub_.control(), [&] { return attempt(connection); }));
  return finish();
}

// What is there is summed again, since another process may have written it.
Status BlobDownload::open_incomplete() {
  if (fd_ >= 0) ::close(fd_);
  // O_NOFOLLOW: the cache is shared, and a link here would have this write to a file of another's choice.
  fd_ = ::open(incomplete_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kBlobMode);
  struct stat info {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) return file_error(errno, incomplete_, "open");
  if (!S_ISREG(info.st_mode)) return invalid_argument("{} is no regular file; wanted one", incomplete_);
  RETURN_IF_ERROR(restart());
  unfit_ = false;
  // Of another version of the file under the same name, or spoilt: none of it can be kept.
  if (static_cast<uint64_t>(info.st_size) > file_.size) {
    return ::ftruncate(fd_, 0) == 0 ? ok_status() : file_error(errno, incomplete_, "shorten");
  }
  std::vector<std::byte> buffer(kReadBytes);
  while (size_ < static_cast<uint64_t>(info.st_size)) {
    const ssize_t count = ::pread(fd_, buffer.data(), buffer.size(), static_cast<off_t>(size_));
    if (count < 0) return file_error(errno, incomplete_, "read");
    if (count == 0) break;
    // SHA-256 of the beginning is needed to go on; reading it costs less than getting it again.
    RETURN_IF_ERROR(digest_->update(std::span(buffer).first(static_cast<std::size_t>(count))));
    size_ += static_cast<uint64_t>(count);
    arrived_(count);
    // Tens of gigabytes take a while to read.
    if (hub_.control().cancelled()) return Status(StatusCode::kCancelled, "interrupted");
  }
  return ok_status();
}

Status BlobDownload::restart() {
  // The progress goes back by what has to come again.
  arrived_(-static_cast<int64_t>(size_));
  size_ = 0;
  ASSIGN_OR_RETURN(digest_, Digest::make(file_.etag, file_.size));
  return ok_status();
}

Attempt BlobDownload::attempt(Connection& connection) {
  // A resumed file may be complete: a range from its end on would be answered with 416.
  if (size_ == file_.size && size_ > 0) return {ok_status()};
  const uint64_t before = size_;
  const auto answer = connection.perform(
      {.url = hub_.file_url(connection, repository_, file_.name), .first = size_},
      [this](const HubAnswer& head) { return on_head(head); },
      [this](std::span<const std::byte> bytes) { return on_body(bytes); });
  // Attempts without progress are counted (retry.h): a connection that breaks every few minutes must not end a pull of
  // an hour, and one that brings a few bytes each time must not keep it going for ever.
  const bool progress = size_ >= before + kProgressBytes;
  if (!answer.ok()) {
    return {answer.status().with_prefix(what_), answer.status().code() == StatusCode::kUnavailable, progress};
  }
  // No bytes of the file are cut off: what comes anew overwrites all of them, as it has file_.size bytes in all.
  if (answer->status == 416) {  // the file is shorter than what is here: from the beginning
    return {restart().ok() ? error(StatusCode::kUnavailable, "{}: the hub has no bytes from {} on; wanted {} in all",
                                   what_, before, file_.size)
                           : internal_error("no checksum"),
            true};
  }
  if (answer->status != 200 && answer->status != 206) {
    return {status_of(*answer, what_), is_passing(*answer), progress, answer->retry_after_s};
  }
  if (size_ == file_.size) return {ok_status()};
  return {error(StatusCode::kUnavailable, "{}: the transfer ended after {} bytes; wanted {}", what_, size_, file_.size),
          true, progress};
}

Status BlobDownload::on_head(const HubAnswer& answer) {
  // The answer begins at byte 0, whatever was asked for.
  if (answer.status == 200) {
    if (answer.content_length && static_cast<uint64_t>(*answer.content_length) != file_.size) {
      return invalid_argument("the hub sends {} bytes; wanted {}, as its listing has it", *answer.content_length,
                              file_.size);
    }
    skipped_ = size_;  // it serves no ranges
    return ok_status();
  }
  skipped_ = 0;
  const std::optional<ContentRange> range = parse_range(answer.content_range);
  // A server that ignores the range would otherwise write the beginning of the file behind itself, which only the
  // checksum at the end would find.
  if (!range || range->first != size_ || (range->total && *range->total != file_.size)) {
    unfit_ = true;
    return invalid_argument("the hub's Content-Range is {}; wanted bytes {}-{}/{}", quoted_name(answer.content_range),
                            size_, file_.size - 1, file_.size);
  }
  return ok_status();
}

Status BlobDownload::on_body(std::span<const std::byte> bytes) {
  const uint64_t known = std::min<uint64_t>(skipped_, bytes.size());
  skipped_ -= known;
  bytes = bytes.subspan(known);
  if (bytes.size() > file_.size - size_) {
    return invalid_argument("the hub sends over {} bytes; wanted so many, as its listing has it", file_.size);
  }
  while (!bytes.empty()) {
    // pwrite() at size_, not write(): after a restart the position of the descriptor would be wrong.
    const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return file_error(errno, incomplete_, "write")
          .with_prefix(fmt::format("{} of {} bytes are kept", size_, file_.size));
    }
    RETURN_IF_ERROR(digest_->update(bytes.first(static_cast<std::size_t>(count))));
    size_ += static_cast<uint64_t>(count);
    arrived_(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return ok_status();
}

Status BlobDownload::finish() {
  ASSIGN_OR_RETURN(const std::string sum, digest_->finish());
  if (sum != file_.etag) {
    unfit_ = true;
    ::unlink(incomplete_.c_str());
    return invalid_argument("{}: the bytes that came have the checksum {}; wanted {}. They are removed", what_, sum,
                            file_.etag);
  }
  // Before the rename: after a loss of power a file with the blob's name must have the blob's bytes, since
  // is_complete() looks at the size alone.
  if (::fsync(fd_) != 0) return file_error(errno, incomplete_, "write");
  if (::rename(incomplete_.c_str(), blob_.c_str()) != 0) return file_error(errno, blob_, "write");
  return ok_status();
}

}  // namespace millrace::hub
