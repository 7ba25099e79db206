#include "relay/tcp/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "relay/op_table.h"
#include "relay/tcp/handshake.h"

namespace millrace::tcp {
namespace {

constexpr int kDrainMs = 1'000;  // for a refused peer to read why

Status lost(const char* what, int why) {
  return error(StatusCode::kUnavailable, "the connection to the peer broke: {}: {}", what, std::strerror(why));
}

}  // namespace

Connection::Connection(uint64_t id, int fd, Phase phase, const ConnectionConfig& config,
                       std::vector<uint64_t>& output_pending, int64_t now_ms)
    : Link(now_ms),
      id_(id),
      fd_(fd),
      phase_(phase),
      config_(config),
      output_pending_(output_pending),
      phase_ms_(now_ms) {
  used_ms = now_ms;
}

Connection::~Connection() { close(fd_); }

void Connection::set_phase(Phase phase, int64_t now_ms) {
  phase_ = phase;
  phase_ms_ = now_ms;
}

// The sent part stays in front of the queue until all of it is sent: erasing it after each call would move the rest.
void Connection::forget_sent_control() {
  if (control_sent_ < control_.size()) return;
  control_.clear();
  control_sent_ = 0;
}

Status Connection::send(const Header& header, std::span<const std::byte> payload) {
  CHECK(header.length == payload.size());
  forget_sent_control();
  // A peer that asks and never reads would grow the queue without end. The caller drops the frame or the link.
  if (control_.size() - control_sent_ + kHeaderBytes + payload.size() > kMaxControlBytes) {
    return error(StatusCode::kUnavailable, "the peer reads nothing: over {} bytes wait for it", kMaxControlBytes);
  }
  const HeaderBytes head = encode(header);
  control_.append(reinterpret_cast<const char*>(head.data()), head.size());
  control_.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  wake();
  return ok_status();
}

Status Connection::refuse(StatusCode code, int64_t now_ms) {
  Header header;
  header.type = FrameType::kRefuse;
  header.code = static_cast<uint32_t>(code);
  header.extra = kVersion;
  RETURN_IF_ERROR(send(header));
  // Not closed at once: unread bytes in the socket make the kernel send a reset, which may destroy the REFUSE on its
  // way.
  phase_ = Phase::kDraining;
  phase_ms_ = now_ms;
  return ok_status();
}

// ---- in -------------------------------------------------------------------------------------------------------------

Status Connection::receive(std::span<iovec> ranges, std::size_t& got, int64_t now_ms) {
  msghdr message{};
  message.msg_iov = ranges.data();
  message.msg_iovlen = ranges.size();
  got = 0;
  const ssize_t n = recvmsg(fd_, &message, 0);
  if (n == 0) return Status(StatusCode::kUnavailable, "the peer closed the connection");
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return ok_status();
    return lost("receive", errno);
  }
  got = static_cast<std::size_t>(n);
  liveness.seen_ms = now_ms;
  // From the first byte of a frame on, so that a peer that sends one byte now and then cannot hold the connection.
  if (begun_ms_ == 0) begun_ms_ = now_ms;
  return ok_status();
}

Status Connection::pump_in(int64_t now_ms) {
  bool more = true;
  // `more` is false after a call that got less than it asked for: the socket is empty, and one more call would only
  // cost.
  for (int i = 0; i < kMaxCallsPerTurn && more; ++i) {
    if (phase_ == Phase::kDraining) {
      RETURN_IF_ERROR(step_drain(more, now_ms));
    } else if (expect_ == Expect::kHeader) {
      RETURN_IF_ERROR(step_header(more, now_ms));
    } else if (expect_ == Expect::kPayload) {
      RETURN_IF_ERROR(step_payload(more, now_ms));
    } else {
      RETURN_IF_ERROR(step_data(more, now_ms));
    }
  }
  return ok_status();
}

Status Connection::step_drain(bool& more, int64_t now_ms) {
  // Read and dropped until the peer hangs up, so that its bytes do not turn our close into a reset.
  std::array<std::byte, 4096> scratch;
  iovec range{scratch.data(), scratch.size()};
  std::size_t got = 0;
  RETURN_IF_ERROR(receive({&range, 1}, got, now_ms));
  more = got == scratch.size();
  return ok_status();
}

Status Connection::step_header(bool& more, int64_t now_ms) {
  if (head_have_ < kHeaderBytes) {
    iovec range{head_.data() + head_have_, kHeaderBytes - head_have_};
    std::size_t got = 0;
    RETURN_IF_ERROR(receive({&range, 1}, got, now_ms));
    head_have_ += got;
    if (head_have_ < kHeaderBytes) {
      more = false;
      return ok_status();
    }
  }
  return take_header();
}

Status Connection::take_header() {
  head_have_ = 0;
  const Result<Header> header = decode(head_);
  if (!header.ok()) return header.status();
  header_ = *header;
  have_ = 0;
  if (header_.type == FrameType::kData) {
    if (phase_ != Phase::kReady) return invalid_argument("a DATA frame came during the handshake");
    // decode() allows what any channel may send; here a frame is bounded by what a detached put has to copy.
    if (header_.length > kFrameBytes) {
      return invalid_argument("the length of a DATA is {}; wanted at most {}", header_.length, kFrameBytes);
    }
    // Also on the writer's side, whose default refuses it.
    RETURN_IF_ERROR(config_.user.data_begin(*this, header_));
    trailer_have_ = 0;
    if (body_bytes(header_) > 0) {
      expect_ = Expect::kData;
      return ok_status();
    }
    begun_ms_ = 0;
    return config_.user.data_end(*this, 0);
  }
  if (header_.length > 0) {
    payload_.resize(header_.length);  // decode() has bounded it
    expect_ = Expect::kPayload;
    return ok_status();
  }
  payload_.clear();
  return finish_control();
}

Status Connection::step_payload(bool& more, int64_t now_ms) {
  iovec range{payload_.data() + have_, payload_.size() - have_};
  std::size_t got = 0;
  RETURN_IF_ERROR(receive({&range, 1}, got, now_ms));
  have_ += got;
  if (have_ == payload_.size()) return finish_control();
  more = false;
  return ok_status();
}

Status Connection::finish_control() {
  expect_ = Expect::kHeader;
  begun_ms_ = 0;
  // In every phase: receive() has noted the sign of life already.
  if (header_.type == FrameType::kPong) return ok_status();
  if (header_.type == FrameType::kPing) return send_bare(FrameType::kPong);
  if (phase_ == Phase::kHandshake) {
    ASSIGN_OR_RETURN(const bool ready, config_.opener ? reader_step(*this, config_.self, header_, payload_)
                                                      : writer_step(*this, config_.self, header_, payload_));
    if (!ready) return ok_status();
    // First the phase, as on_ready() sends on this connection.
    set_phase(Phase::kReady, monotonic_ms());
    config_.user.on_ready(*this);
    return ok_status();
  }
  // Ticket 0 is no get's: the whole connection is refused, and the error ends it.
  if (config_.opener && header_.type == FrameType::kRefuse && header_.ticket == 0) return refusal(header_);
  return config_.user.on_frame(*this, header_, payload_);
}

Status Connection::connected() {
  set_phase(Phase::kHandshake, monotonic_ms());
  return send_hello(*this, config_.self);
}

Status Connection::step_data(bool& more, int64_t now_ms) {
  // The next frame's header comes with the same call as the payload's last bytes and their checksum.
  std::array<iovec, kMaxRangesPerCall + 2> ranges{};
  const std::size_t left = header_.length - have_;
  const std::size_t trailer_left = body_bytes(header_) - header_.length - trailer_have_;
  // data_space() pins the get: from here to data_received() no other path may return.
  std::size_t count = left > 0 ? config_.user.data_space(*this, std::span(ranges).first(kMaxRangesPerCall)) : 0;
  std::size_t space = 0;
  for (std::size_t i = 0; i < count; ++i) space += ranges[i].iov_len;
  CHECK(space <= left && (space > 0 || left == 0));
  std::size_t wanted = space;
  // Only behind the last byte of the payload: else the header would land in the middle of the frame.
  if (space == left) {
    if (trailer_left > 0) ranges[count++] = {trailer_.data() + trailer_have_, trailer_left};
    ranges[count++] = {head_.data(), kHeaderBytes};
    wanted += trailer_left + kHeaderBytes;
  }
  std::size_t got = 0;
  const Status received = receive(std::span(ranges).first(count), got, now_ms);
  const std::size_t taken = std::min(got, space);
  // Also where receive() failed, with 0 bytes: it releases the pin.
  if (left > 0) config_.user.data_received(*this, taken);
  RETURN_IF_ERROR(received);
  more = got == wanted;
  have_ += taken;
  // What came is split in the order of the ranges: payload, trailer, next header.
  const std::size_t trailer = std::min(got - taken, trailer_left);
  trailer_have_ += trailer;
  if (have_ < header_.length || trailer < trailer_left) return ok_status();
  expect_ = Expect::kHeader;
  // The next header may be here in part or whole; step_header() goes on from it.
  head_have_ = got - taken - trailer;
  begun_ms_ = head_have_ > 0 ? now_ms : 0;
  return config_.user.data_end(*this, trailer_have_ > 0 ? load_u64(trailer_.data()) : 0);
}

// ---- out ------------------------------------------------------------------------------------------------------------

std::size_t Connection::gather(std::span<iovec> out) {
  const auto add_control = [&](std::size_t at) {
    if (control_.size() == control_sent_) return at;
    out[at] = {control_.data() + control_sent_, control_.size() - control_sent_};
    return at + 1;
  };
  // A frame that has begun goes first; a new one comes behind the control frames.
  if (frame_.begun()) return frame_.fill(out);
  Outgoing next;
  // Asked when the socket has space and not before: until then the range holds nothing, and the put may end.
  if (!frame_.open() && phase_ == Phase::kReady && config_.carries_data && config_.user.next_data(*this, next)) {
    frame_.start(std::move(next));
  }
  const std::size_t count = add_control(0);
  return frame_.open() ? count + frame_.fill(out.subspan(count)) : count;
}

void Connection::sent(std::size_t bytes) {
  if (!frame_.begun()) {
    const std::size_t control = std::min(bytes, control_.size() - control_sent_);
    control_sent_ += control;
    bytes -= control;
  }
  if (bytes > 0) frame_.advance(bytes);
  if (!frame_.trailer_ready()) return;
  // Before the control frames that were queued meanwhile, none of which has begun: a frame that has goes first.
  forget_sent_control();
  const auto trailer = frame_.take_trailer();
  control_.insert(control_sent_, reinterpret_cast<const char*>(trailer.data()), trailer.size());
}

Status Connection::pump_out(int64_t now_ms, bool writable) {
  if (phase_ == Phase::kConnecting) return ok_status();
  if (writable && wants_out_) liveness.seen_ms = now_ms;  // it was full and is writable: the peer took something
  wants_out_ = false;
  for (int i = 0; i < kMaxCallsPerTurn; ++i) {
    // Control frames, the frame's header, its bytes, its trailer.
    std::array<iovec, kMaxRangesPerCall + 3> ranges{};
    const std::size_t count = gather(ranges);
    if (count == 0) return finish_drain();
    std::size_t wanted = 0;
    for (std::size_t k = 0; k < count; ++k) wanted += ranges[k].iov_len;
    msghdr message{};
    message.msg_iov = ranges.data();
    message.msg_iovlen = count;
    // Not MSG_MORE, though a checksum follows: the reader would wait for the last packet while this side sums.
    const ssize_t n = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return lost("send", errno);
    if (n > 0) {
      sent(static_cast<std::size_t>(n));
      liveness.sent_ms = now_ms;
    }
    // The socket is full. After kMaxCallsPerTurn calls that took all, the loop goes on as well, and wants_out_ asks for
    // another turn at once.
    if (n < 0 || static_cast<std::size_t>(n) < wanted) break;
  }
  wants_out_ = true;
  return ok_status();
}

Status Connection::finish_drain() {
  if (phase_ == Phase::kDraining && !write_shut_) {
    write_shut_ = true;
    // The peer reads the REFUSE and then the end of the stream, and hangs up; check_opening() bounds the wait.
    shutdown(fd_, SHUT_WR);
  }
  return ok_status();
}

// ---- time -----------------------------------------------------------------------------------------------------------

Status Connection::send_bare(FrameType type) {
  Header header;
  header.type = type;
  return send(header);
}

Status Connection::check_opening(int64_t now_ms, int64_t& due_ms) const {
  const int64_t until = phase_ms_ + (phase_ == Phase::kDraining ? kDrainMs : config_.connect_timeout_ms);
  if (now_ms < until) {
    due_ms = std::min(due_ms, until);
    return ok_status();
  }
  return error(StatusCode::kUnavailable, "the peer did not {} within {} ms",
               phase_ == Phase::kDraining ? "hang up" : "complete the handshake", until - phase_ms_);
}

void Connection::compensate_pause(int64_t now_ms) {
  liveness.seen_ms = now_ms;
  if (begun_ms_ != 0) begun_ms_ = now_ms;
}

Status Connection::check_time(int64_t now_ms, int64_t& due_ms) {
  if (phase_ != Phase::kReady) return check_opening(now_ms, due_ms);
  const bool expecting = busy();
  const int silent_ms = std::max(config_.silent_ms, patience_ms);
  // On the writer's side alone: what readers send is small. A DATA frame of 512 KiB may take longer over a slow
  // network, and its bytes show that the writer lives.
  if (!config_.opener && begun_ms_ != 0 && now_ms >= begun_ms_ + silent_ms) {
    return error(StatusCode::kUnavailable, "the peer took over {} ms for one frame", silent_ms);
  }
  // The opener of an idle connection sends a PING each kIdlePingMs, so kIdleLostMs of silence means that it is gone.
  const int allowed_ms = expecting ? silent_ms : kIdleLostMs;
  // An opener that expects nothing does not check: it closes the connection after kIdleCloseMs, and the next get finds
  // out.
  if ((expecting || !config_.opener) && liveness.dead(now_ms, allowed_ms)) {
    silent = true;
    return error(StatusCode::kUnavailable, "the peer has been silent for {} ms", now_ms - liveness.seen_ms);
  }
  if (config_.opener && !expecting && now_ms >= used_ms + kIdleCloseMs) {
    return error(StatusCode::kUnavailable, "idle for {} ms", now_ms - used_ms);
  }
  if (expecting || config_.opener) {
    const int64_t every_ms = expecting ? Liveness::ping_every_ms(config_.silent_ms) : kIdlePingMs;
    // While the socket is full a PING would only wait behind the rest; any space that it gains counts as life.
    if (liveness.ping_due(now_ms, every_ms, due_ms) && !wants_out_) RETURN_IF_ERROR(send_bare(FrameType::kPing));
  }
  due_ms = std::min(due_ms, liveness.seen_ms + allowed_ms);
  if (begun_ms_ != 0) due_ms = std::min(due_ms, begun_ms_ + silent_ms);
  return ok_status();
}

}  // namespace millrace::tcp
