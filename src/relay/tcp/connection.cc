#include "relay/tcp/connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace millrace::tcp {
namespace {

constexpr int kPingsPerSilence = 4;
constexpr int kDrainMs = 1'000;  // for a refused peer to read why

Status lost(const char* what, int why) {
  return error(StatusCode::kUnavailable, "the connection to the peer broke: {}: {}", what, std::strerror(why));
}

}  // namespace

Connection::Connection(uint64_t id, int fd, Phase phase, FrameUser& user, int64_t now_ms)
    : id_(id),
      fd_(fd),
      phase_(phase),
      user_(user),
      phase_ms_(now_ms),
      life_ms_(now_ms),
      sent_ms_(now_ms),
      used_ms_(now_ms) {}

Connection::~Connection() { close(fd_); }

void Connection::set_phase(Phase phase, int64_t now_ms) {
  phase_ = phase;
  phase_ms_ = now_ms;
}

void Connection::forget_sent_control() {
  if (control_sent_ < control_.size()) return;
  control_.clear();
  control_sent_ = 0;
}

Status Connection::send(const Header& header, std::span<const std::byte> payload) {
  CHECK(header.length == payload.size());
  forget_sent_control();
  if (control_.size() - control_sent_ + kHeaderBytes + payload.size() > kMaxControlBytes) {
    return error(StatusCode::kUnavailable, "the peer reads nothing: over {} bytes wait for it", kMaxControlBytes);
  }
  const HeaderBytes head = encode(header);
  control_.append(reinterpret_cast<const char*>(head.data()), head.size());
  control_.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  return ok_status();
}

Status Connection::refuse(StatusCode code, int64_t now_ms) {
  Header header;
  header.type = FrameType::kRefuse;
  header.code = static_cast<uint32_t>(code);
  header.extra = kVersion;
  RETURN_IF_ERROR(send(header));
  phase_ = Phase::kDraining;
  phase_ms_ = now_ms;
  return ok_status();
}

// ---- in -------------------------------------------------------------------------------------------------------------

Status Connection::receive(std::span<iovec> pieces, std::size_t& got, int64_t now_ms) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  got = 0;
  const ssize_t n = recvmsg(fd_, &message, 0);
  if (n == 0) return Status(StatusCode::kUnavailable, "the peer closed the connection");
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return ok_status();
    return lost("receive", errno);
  }
  got = static_cast<std::size_t>(n);
  life_ms_ = now_ms;
  if (begun_ms_ == 0) begun_ms_ = now_ms;
  return ok_status();
}

Status Connection::pump_in(int64_t now_ms) {
  bool more = true;
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
  std::array<std::byte, 4096> scratch;
  iovec piece{scratch.data(), scratch.size()};
  std::size_t got = 0;
  RETURN_IF_ERROR(receive({&piece, 1}, got, now_ms));
  more = got == scratch.size();
  return ok_status();
}

Status Connection::step_header(bool& more, int64_t now_ms) {
  if (head_have_ < kHeaderBytes) {
    iovec piece{head_.data() + head_have_, kHeaderBytes - head_have_};
    std::size_t got = 0;
    RETURN_IF_ERROR(receive({&piece, 1}, got, now_ms));
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
    RETURN_IF_ERROR(user_.data_begin(*this, header_));
    trailer_have_ = 0;
    if (body_bytes(header_) > 0) {
      expect_ = Expect::kData;
      return ok_status();
    }
    begun_ms_ = 0;
    return user_.data_end(*this, 0);
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
  iovec piece{payload_.data() + have_, payload_.size() - have_};
  std::size_t got = 0;
  RETURN_IF_ERROR(receive({&piece, 1}, got, now_ms));
  have_ += got;
  if (have_ == payload_.size()) return finish_control();
  more = false;
  return ok_status();
}

Status Connection::finish_control() {
  expect_ = Expect::kHeader;
  begun_ms_ = 0;
  if (header_.type == FrameType::kPong) return ok_status();
  if (header_.type == FrameType::kPing) {
    Header pong;
    pong.type = FrameType::kPong;
    return send(pong);
  }
  return user_.on_control(*this, header_, payload_);
}

Status Connection::step_data(bool& more, int64_t now_ms) {
  // The next frame's header comes with the same call as the payload's last bytes and their checksum.
  std::array<iovec, kMaxPiecesPerCall + 2> pieces{};
  const std::size_t left = header_.length - have_;
  const std::size_t trailer_left = body_bytes(header_) - header_.length - trailer_have_;
  std::size_t count = left > 0 ? user_.data_space(*this, std::span(pieces).first(kMaxPiecesPerCall)) : 0;
  std::size_t space = 0;
  for (std::size_t i = 0; i < count; ++i) space += pieces[i].iov_len;
  CHECK(space <= left && (space > 0 || left == 0));
  std::size_t wanted = space;
  if (space == left) {
    if (trailer_left > 0) pieces[count++] = {trailer_.data() + trailer_have_, trailer_left};
    pieces[count++] = {head_.data(), kHeaderBytes};
    wanted += trailer_left + kHeaderBytes;
  }
  std::size_t got = 0;
  const Status received = receive(std::span(pieces).first(count), got, now_ms);
  const std::size_t taken = std::min(got, space);
  if (left > 0) user_.data_received(*this, taken);
  RETURN_IF_ERROR(received);
  more = got == wanted;
  have_ += taken;
  const std::size_t trailer = std::min(got - taken, trailer_left);
  trailer_have_ += trailer;
  if (have_ < header_.length || trailer < trailer_left) return ok_status();
  expect_ = Expect::kHeader;
  head_have_ = got - taken - trailer;
  begun_ms_ = head_have_ > 0 ? now_ms : 0;
  return user_.data_end(*this, trailer_have_ > 0 ? load_u64(trailer_.data()) : 0);
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
  const bool has_frame = frame_.open() || (phase_ == Phase::kReady && user_.next_data(*this, frame_));
  const std::size_t count = add_control(0);
  return has_frame ? count + frame_.fill(out.subspan(count)) : count;
}

void Connection::sent(std::size_t bytes) {
  if (!frame_.begun()) {
    const std::size_t control = std::min(bytes, control_.size() - control_sent_);
    control_sent_ += control;
    bytes -= control;
  }
  if (bytes > 0) frame_.advance(bytes);
  if (!frame_.ready_to_hand_over()) return;
  // In front of the control frames that were queued meanwhile, none of which has begun: a frame that has goes first.
  forget_sent_control();
  const auto trailer = frame_.hand_over_trailer();
  control_.insert(control_sent_, reinterpret_cast<const char*>(trailer.data()), trailer.size());
}

Status Connection::pump_out(int64_t now_ms, bool room) {
  if (phase_ == Phase::kConnecting) return ok_status();
  if (room && wants_out_) life_ms_ = now_ms;  // it was full and has room: the peer took something
  wants_out_ = false;
  for (int i = 0; i < kMaxCallsPerTurn; ++i) {
    std::array<iovec, kMaxPiecesPerCall + 3> pieces{};
    const std::size_t count = gather(pieces);
    if (count == 0) return finish_drain();
    std::size_t wanted = 0;
    for (std::size_t k = 0; k < count; ++k) wanted += pieces[k].iov_len;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    // Not MSG_MORE, though a checksum follows: the reader would wait for the last packet while this side sums.
    const ssize_t n = sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return lost("send", errno);
    if (n > 0) {
      sent(static_cast<std::size_t>(n));
      sent_ms_ = now_ms;
    }
    if (n < 0 || static_cast<std::size_t>(n) < wanted) break;
  }
  wants_out_ = true;
  return ok_status();
}

Status Connection::finish_drain() {
  if (phase_ == Phase::kDraining && !write_shut_) {
    write_shut_ = true;
    shutdown(fd_, SHUT_WR);
  }
  return ok_status();
}

// ---- time -----------------------------------------------------------------------------------------------------------

void Connection::begin_use(int64_t now_ms) {
  if (!user_.busy(*this)) life_ms_ = now_ms;  // only now is something expected of the peer
  used_ms_ = now_ms;
}

Status Connection::ping() {
  Header header;
  header.type = FrameType::kPing;
  return send(header);
}

Status Connection::check_opening(const Limits& limits, int64_t now_ms, int64_t& due_ms) const {
  const int64_t until = phase_ms_ + (phase_ == Phase::kDraining ? kDrainMs : limits.connect_timeout_ms);
  if (now_ms < until) {
    due_ms = std::min(due_ms, until);
    return ok_status();
  }
  return error(StatusCode::kUnavailable, "the peer did not {} within {} ms",
               phase_ == Phase::kDraining ? "hang up" : "complete the handshake", until - phase_ms_);
}

Status Connection::check_time(const Limits& limits, int64_t now_ms, int64_t& due_ms) {
  if (phase_ != Phase::kReady) return check_opening(limits, now_ms, due_ms);
  const bool busy = user_.busy(*this);
  if (!limits.opener && begun_ms_ != 0 && now_ms >= begun_ms_ + limits.silent_ms) {
    return error(StatusCode::kUnavailable, "the peer took over {} ms for one frame", limits.silent_ms);
  }
  const int64_t silent_until = life_ms_ + (busy ? limits.silent_ms : kIdleLostMs);
  if (now_ms >= silent_until && (busy || !limits.opener)) {
    silent_ = true;
    return error(StatusCode::kUnavailable, "the peer has said nothing for {} ms", now_ms - life_ms_);
  }
  if (limits.opener && !busy && now_ms >= used_ms_ + kIdleCloseMs) {
    return error(StatusCode::kUnavailable, "idle for {} ms", now_ms - used_ms_);
  }
  const int64_t ping_every = busy ? std::max(1, limits.silent_ms / kPingsPerSilence) : kIdlePingMs;
  if (busy || limits.opener) {
    if (now_ms >= std::max(sent_ms_, ping_ms_) + ping_every) {
      ping_ms_ = now_ms;
      if (!wants_out_) RETURN_IF_ERROR(ping());
    }
    due_ms = std::min(due_ms, std::max(sent_ms_, ping_ms_) + ping_every);
  }
  due_ms = std::min(due_ms, silent_until);
  if (begun_ms_ != 0) due_ms = std::min(due_ms, begun_ms_ + limits.silent_ms);
  return ok_status();
}

}  // namespace millrace::tcp
