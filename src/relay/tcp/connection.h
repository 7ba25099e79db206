// Connection: one TCP connection between two relays, as a link of the session: frames in, frames out, and whether the
// peer lives.
//
//   opening (connect, handshake) -> ready -> gone
//                 \-> draining (we refused the peer and wait until it has read why) -> gone
//
// Its user is the reader's side (it opened the connection) or the writer's side (it accepted it). Control frames wait
// in a bounded queue; DATA frames are taken from the user one by one when the socket has space, so a slow peer holds
// one frame and the queue, never more. What comes in is received straight into the user's memory, together with the
// header behind it.
//
// Life: any byte that arrives, and any space that a blocked socket gains.
//
// Owner: ConnectionSet. Thread safety: the loop's thread alone.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "relay/session/secret.h"
#include "relay/tcp/outgoing_frame.h"

namespace millrace::tcp {

enum class Phase { kConnecting, kHandshake, kReady, kDraining };

// The state of both sides' handshakes.
struct Opening {
  Transcript transcript;
  bool greeted = false;  // HELLO came (accepted) or was sent (opened)
  bool challenged = false;
};

struct Identity {
  uint64_t instance = 0;
  std::string address;  // format_instance()
  std::string secret;   // empty: none is asked for and none is accepted
};

// What all connections of one side have in common.
struct ConnectionConfig {
  LinkUser& user;
  Identity self;
  int connect_timeout_ms = 0;
  int silent_ms = 0;
  bool opener = false;       // pings when idle, and closes what nothing used for kIdleCloseMs
  bool carries_data = true;  // false: DATA does not travel here, and next_data() is asked by others
};

class Connection final : public Link {
 public:
  // `output_pending`: gets the id of each connection that may have output.
  Connection(uint64_t id, int fd, Phase phase, const ConnectionConfig& config, std::vector<uint64_t>& output_pending,
             int64_t now_ms);
  ~Connection() override;  // closes the socket

  uint64_t id() const { return id_; }
  int fd() const { return fd_; }
  Phase phase() const { return phase_; }
  void set_phase(Phase phase, int64_t now_ms);
  Opening& opening() { return opening_; }
  bool busy() const { return config_.user.busy(*this); }

  bool ready() const override { return phase_ == Phase::kReady; }
  // pump_out() sends it.
  Status send(const Header& header, std::span<const std::byte> payload = {}) override;
  void wake() override { output_pending_.push_back(id_); }
  void detach(const Put& put) override {
    if (frame_.of(put)) frame_.detach();
  }
  // Sends REFUSE with this code for the whole connection, and drains: the peer has time to read it.
  Status refuse(StatusCode code, int64_t now_ms);

  // The socket is readable or writable. An error: the connection is over; EOF is kUnavailable.
  Status pump_in(int64_t now_ms);
  // writable: the socket was found writable.
  Status pump_out(int64_t now_ms, bool writable);
  // There is more to send than the socket took: pump_out() again when it is writable.
  bool wants_out() const { return wants_out_; }

  // Time: queues a PING where one is due; an error where the peer is dead or too slow, or no get or put used the
  // connection for long. Lowers `due_ms` to when it wants to be asked again.
  Status check_time(int64_t now_ms, int64_t& due_ms);
  // This side did not run for a while: what the peer is silent for, and has taken for a frame, counts from now on.
  void compensate_pause(int64_t now_ms);
  // The handshake begins: connect() came to its end.
  Status connected();

 private:
  Status receive(std::span<iovec> ranges, std::size_t& got, int64_t now_ms);
  Status take_header();
  Status step_header(bool& more, int64_t now_ms);
  Status step_payload(bool& more, int64_t now_ms);
  Status step_data(bool& more, int64_t now_ms);
  Status step_drain(bool& more, int64_t now_ms);
  Status finish_control();
  void forget_sent_control();
  std::size_t gather(std::span<iovec> out);
  void sent(std::size_t bytes);
  Status finish_drain();
  Status send_bare(FrameType type);
  Status check_opening(int64_t now_ms, int64_t& due_ms) const;

  enum class Expect { kHeader, kPayload, kData };

  const uint64_t id_;
  const int fd_;
  Phase phase_;
  const ConnectionConfig& config_;
  std::vector<uint64_t>& output_pending_;
  Opening opening_;

  Expect expect_ = Expect::kHeader;
  HeaderBytes head_{};
  std::size_t head_have_ = 0;
  Header header_;
  std::vector<std::byte> payload_;
  std::size_t have_ = 0;  // of the payload
  std::array<std::byte, kTrailerBytes> trailer_{};
  std::size_t trailer_have_ = 0;

  std::string control_;
  std::size_t control_sent_ = 0;
  OutgoingFrame frame_;
  bool wants_out_ = false;
  bool write_shut_ = false;

  int64_t phase_ms_;      // since when it is in its phase
  int64_t begun_ms_ = 0;  // when the frame that is half here began; 0: none
};

}  // namespace millrace::tcp
