#include "relay/nccl/control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "relay/op_table.h"
#include "relay/tcp/address.h"

namespace millrace::nccl {
namespace {

constexpr uint32_t kMagic = 0x434E524D;  // "MRNC" as bytes
constexpr uint8_t kVersion = 1;
constexpr int kPollMs = 100;  // between two looks at the time
constexpr std::size_t kReadBytes = 4096;

template <typename T>
void append(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

template <typename T>
T load(const std::string& in, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(T{static_cast<uint8_t>(in[at + i])} << (8 * i));
  return value;
}

}  // namespace

std::string encode(const Frame& frame) {
  std::string out;
  append(out, kMagic);
  append(out, kVersion);
  append(out, static_cast<uint8_t>(frame.type));
  append(out, frame.code);
  append(out, static_cast<uint32_t>(frame.payload.size()));
  append(out, frame.ticket);
  append(out, frame.a);
  append(out, frame.b);
  return out + frame.payload;
}

Result<std::optional<Frame>> take_frame(std::string& bytes) {
  if (bytes.size() < kFrameHeaderBytes) return std::optional<Frame>();
  const auto length = load<uint32_t>(bytes, 8);
  const auto type = load<uint8_t>(bytes, 5);
  if (load<uint32_t>(bytes, 0) != kMagic || load<uint8_t>(bytes, 4) != kVersion || length > kMaxFramePayload ||
      type < static_cast<uint8_t>(FrameType::kHello) || type > static_cast<uint8_t>(FrameType::kJoin)) {
    return invalid_argument(
        "the peer's frame has magic {:#x}, version {}, type {}, length {}; wanted {:#x}, {}, 1..13, at most {}",
        load<uint32_t>(bytes, 0), load<uint8_t>(bytes, 4), type, length, kMagic, kVersion, kMaxFramePayload);
  }
  if (bytes.size() < kFrameHeaderBytes + length) return std::optional<Frame>();
  Frame frame;
  frame.type = static_cast<FrameType>(type);
  frame.code = load<uint16_t>(bytes, 6);
  frame.ticket = load<uint64_t>(bytes, 12);
  frame.a = load<uint64_t>(bytes, 20);
  frame.b = load<uint64_t>(bytes, 28);
  frame.payload = bytes.substr(kFrameHeaderBytes, length);
  bytes.erase(0, kFrameHeaderBytes + length);
  return std::optional<Frame>(std::move(frame));
}

Control::Control(int fd, int silent_ms)
    : fd_(fd), wake_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), silent_ms_(silent_ms) {
  heard_ms_ = sent_ms_ = relay_now_ms();
}

Control::~Control() {
  ::close(fd_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void Control::wake() {
  const uint64_t one = 1;
  (void)!::write(wake_fd_, &one, sizeof(one));
}

void Control::stop() {
  stopped_ = true;
  wake();
}

void Control::hang_up() { (void)::shutdown(fd_, SHUT_RDWR); }

void Control::set_busy(bool busy) {
  if (busy && !busy_) heard_ms_ = sent_ms_ = relay_now_ms();
  busy_ = busy;
}

Status Control::finish_connect(int timeout_ms) {
  const int64_t deadline = relay_now_ms() + timeout_ms;
  while (!stopped()) {
    pollfd wanted[] = {{fd_, POLLOUT, 0}, {wake_fd_, POLLIN, 0}};
    const int64_t left = deadline - relay_now_ms();
    if (left <= 0) return error(StatusCode::kUnavailable, "the writer did not answer within {} ms", timeout_ms);
    (void)::poll(wanted, stopped() ? 1 : 2, static_cast<int>(std::min<int64_t>(left, kPollMs)));
    if (wanted[0].revents != 0) return tcp::connect_result(fd_);
    if (wanted[1].revents != 0) ::usleep(1000);  // woken for a get; that is looked at later
  }
  return Status(StatusCode::kCancelled, "the relay was closed");
}

Status Control::send(const Frame& frame) {
  out_ += encode(frame);
  return flush(relay_now_ms() + silent_ms_);
}

Status Control::flush(int64_t deadline_ms) {
  while (!out_.empty()) {
    const ssize_t put = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put > 0) {
      out_.erase(0, static_cast<std::size_t>(put));
      sent_ms_ = relay_now_ms();
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return error(StatusCode::kUnavailable, "the peer is gone: {}", std::strerror(errno));
    if (stopped()) return Status(StatusCode::kCancelled, "the relay was closed");
    if (relay_now_ms() > deadline_ms) return Status(StatusCode::kUnavailable, "the peer reads nothing");
    pollfd wanted{fd_, POLLOUT, 0};
    (void)::poll(&wanted, 1, kPollMs);
  }
  return ok_status();
}

Status Control::read_some() {
  char buffer[kReadBytes];
  const ssize_t got = ::recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got > 0) {
    heard_ms_ = relay_now_ms();
    in_.append(buffer, static_cast<std::size_t>(got));
    return ok_status();
  }
  if (got == 0) return Status(StatusCode::kUnavailable, "the peer is gone");
  if (errno == EAGAIN || errno == EINTR) return ok_status();
  return error(StatusCode::kUnavailable, "the peer is gone: {}", std::strerror(errno));
}

Status Control::check_life() {
  if (!busy_) return ok_status();
  const int64_t now = relay_now_ms();
  if (now - heard_ms_ > silent_ms_) return error(StatusCode::kUnavailable, "the peer was silent for {} ms", silent_ms_);
  if (now - sent_ms_ > silent_ms_ / 4) return send({.type = FrameType::kPing, .payload = {}});
  return ok_status();
}

Status Control::pump(int64_t wait_us) {
  if (stopped()) return Status(StatusCode::kCancelled, "the relay was closed");
  const int64_t longest_us = (busy_ ? std::min(kPollMs, std::max(1, silent_ms_ / 8)) : kPollMs) * int64_t{1000};
  const timespec wait{0, static_cast<long>(std::min(wait_us, longest_us) * 1000)};
  pollfd wanted[] = {{fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  (void)::ppoll(wanted, 2, &wait, nullptr);
  if (wanted[1].revents != 0) {
    uint64_t count = 0;
    (void)!::read(wake_fd_, &count, sizeof(count));
  }
  if (wanted[0].revents != 0) RETURN_IF_ERROR(read_some());
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Frame> frame, take_frame(in_));
    if (!frame) break;
    if (frame->type == FrameType::kPong) continue;
    if (frame->type == FrameType::kPing) {
      RETURN_IF_ERROR(send({.type = FrameType::kPong, .payload = {}}));
    } else if (frame->type == FrameType::kRefuse && frame->ticket == 0) {
      return error(StatusCode::kUnavailable, "the writer ends the connection: {}", frame->payload);
    } else if (frames_.size() >= kMaxFramesAhead) {
      return invalid_argument("the peer sent {} frames ahead; wanted less", frames_.size());
    } else {
      frames_.push_back(std::move(*frame));
    }
  }
  return check_life();
}

Result<std::optional<Frame>> Control::take(int64_t wait_us) {
  if (frames_.empty()) RETURN_IF_ERROR(pump(wait_us));
  if (frames_.empty()) return std::optional<Frame>();
  std::optional<Frame> frame(std::move(frames_.front()));
  frames_.pop_front();
  return frame;
}

Result<Frame> Control::expect(int64_t deadline_ms) {
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Frame> frame, take(kPollMs * int64_t{1000}));
    if (frame) return std::move(*frame);
    if (deadline_ms >= 0 && relay_now_ms() > deadline_ms) {
      return Status(StatusCode::kDeadline, "the peer did not answer in time");
    }
  }
}

}  // namespace millrace::nccl
