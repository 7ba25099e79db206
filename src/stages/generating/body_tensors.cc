#include "stages/generating/body_tensors.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "collective/limits.h"

namespace millrace {
namespace {

struct EndHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

class BodyTensors : public collective::ProcessGroup {
 public:
  BodyTensors(int fd, const WeightBody& body)
      : fd_(fd), body_(body), at_(body.begin), hash_(XXH3_createState()), slice_(collective::kSliceBytes) {
    CHECK(XXH3_64bits_reset(hash_.get()) == XXH_OK);
  }
  ~BodyTensors() override { ::close(fd_); }
  BodyTensors(const BodyTensors&) = delete;
  BodyTensors& operator=(const BodyTensors&) = delete;

  // The next `bytes` of the body. After the last one, all of them must be those that the coordinator got.
  Status receive_broadcast(int /*root*/, uint64_t bytes, const collective::ReceiveLimits& limits,
                           collective::SliceConsumer on_slice) override {
    for (const uint64_t end = at_ + bytes; at_ < end;) {
      if (collective::Clock::now() >= limits.deadline) return error(StatusCode::kDeadline, "reading it took too long");
      const std::size_t most = std::min<uint64_t>(end - at_, slice_.size());
      const ssize_t count = ::pread(fd_, slice_.data(), most, static_cast<off_t>(at_));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        return error(StatusCode::kUnavailable, "the body ends at byte {}; wanted {} bytes: {}", at_, body_.end,
                     count < 0 ? std::strerror(errno) : "it was cut");
      }
      const std::span<const std::byte> slice(slice_.data(), static_cast<std::size_t>(count));
      CHECK(XXH3_64bits_update(hash_.get(), slice.data(), slice.size()) == XXH_OK);
      RETURN_IF_ERROR(on_slice(slice));
      at_ += slice.size();
    }
    const uint64_t found = at_ == body_.end ? XXH3_64bits_digest(hash_.get()) : body_.checksum;
    if (found == body_.checksum) return ok_status();
    return error(StatusCode::kConflict, "{} has the checksum {:016x}; wanted {:016x}: it is not the request's body",
                 body_.path, found, body_.checksum);
  }
  Status await_loss(collective::Clock::time_point) override { return ok_status(); }

 private:
  const int fd_;
  const WeightBody body_;
  uint64_t at_;  // the next byte
  std::unique_ptr<XXH3_state_t, EndHash> hash_;
  std::vector<std::byte> slice_;
};

}  // namespace

Result<std::unique_ptr<collective::ProcessGroup>> open_body_tensors(const WeightBody& body) {
  const int fd = ::open(body.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return error(StatusCode::kNotFound, "the request's body cannot be read here ({}: {}); wanted a stage on its host",
                 body.path, std::strerror(errno));
  }
  return std::unique_ptr<collective::ProcessGroup>(std::make_unique<BodyTensors>(fd, body));
}

}  // namespace millrace
