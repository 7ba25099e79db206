// Connection: one TCP connection between two relays: frames in, frames out, and whether the peer lives.
//
//   opening (connect, handshake) -> ready -> gone
//                 \-> draining (we refused the peer and wait until it has read why) -> gone
//
// The user of a connection is the reader's side (it opened it) or the writer's side (it accepted it), as FrameUser.
// Control frames wait in a bounded queue; the bytes of puts are fetched from the user frame by frame when the socket
// has room, so a slow peer holds one frame and the queue, never more. What comes in is received straight into the
// user's memory, together with the header behind it.
//
// Life: any byte that comes, and any room that a blocked socket gains. While `busy`, a side that has sent nothing for a
// quarter of silent_ms sends a PING, and a peer without a sign of life for silent_ms is dead.
//
// Thread safety: the I/O thread alone. Owner: ConnectionSet.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "relay/tcp/frame.h"
#include "relay/tcp/io_loop.h"
#include "relay/tcp/outgoing.h"
#include "relay/tcp/secret.h"

namespace millrace::tcp {

class Connection;

// What one side does with its connections. An error that one of these returns ends the connection with it.
class FrameUser {
 public:
  virtual ~FrameUser() = default;
  // A whole frame that is not DATA, PING or PONG.
  virtual Status on_control(Connection& c, const Header& header, std::span<const std::byte> payload) = 0;
  // A DATA frame begins. Then, until it is complete, again and again: where its next bytes go, and how many came.
  // Between the two the memory is the connection's.
  virtual Status data_begin(Connection& c, const Header& header) = 0;
  virtual std::size_t data_space(Connection& c, std::span<iovec> out) = 0;
  virtual void data_received(Connection& c, std::size_t bytes) = 0;
  // It is complete. The sum is its trailer; 0 where it has none.
  virtual Status data_end(Connection& c, uint64_t sum) = 0;
  // The socket has room: starts the next DATA frame, or says that there is none.
  virtual bool next_data(Connection& c, OutgoingFrame& frame) = 0;
  // connect() came to its end.
  virtual Status on_connected(Connection& c) = 0;
  // Is this connection in use, so that its peer must show signs of life?
  virtual bool busy(const Connection& c) const = 0;
  // The connection ends; it is destroyed when this returns.
  virtual void on_lost(Connection& c, const Status& why) = 0;
};

enum class Phase { kConnecting, kHandshake, kReady, kDraining };

// Both handshakes' state, and who the peer is.
struct PeerState {
  Transcript transcript;
  std::string label;      // of the peer: what the user makes of it
  uint64_t instance = 0;  // of the peer, known from the handshake
  bool greeted = false;   // HELLO came (accepted) or was sent (opened)
  bool challenged = false;
};

class Connection {
 public:
  Connection(uint64_t id, int fd, Phase phase, FrameUser& user, int64_t now_ms);
  ~Connection();  // closes the socket
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  uint64_t id() const { return id_; }
  int fd() const { return fd_; }
  Phase phase() const { return phase_; }
  void set_phase(Phase phase, int64_t now_ms);
  PeerState& peer() { return peer_; }
  const PeerState& peer() const { return peer_; }
  OutgoingFrame& frame() { return frame_; }

  // Queues a control frame; pump_out() sends it. kUnavailable: the peer reads nothing and the queue is full.
  Status send(const Header& header, std::span<const std::byte> payload = {});
  // Sends REFUSE with this code for the whole connection, and drains: the peer has time to read it.
  Status refuse(StatusCode code, int64_t now_ms);

  // The socket is readable or writable. An error: the connection is over; EOF is kUnavailable.
  Status pump_in(int64_t now_ms);
  // room: the socket was found writable.
  Status pump_out(int64_t now_ms, bool room);
  // There is more to send than the socket took: pump_out() again when it is writable.
  bool wants_out() const { return wants_out_; }

  // Time: queues a PING where one is due; an error where the peer is dead or too slow, or nobody used the connection
  // for long. Lowers `due_ms` to when it wants to be asked again.
  struct Limits {
    int connect_timeout_ms = 0;
    int silent_ms = 0;
    bool opener = false;  // pings when idle, and closes what nothing used for kIdleCloseMs
  };
  Status check_time(const Limits& limits, int64_t now_ms, int64_t& due_ms);
  // The user is about to give it work: from now on the peer must show life.
  void begin_use(int64_t now_ms);
  int64_t used_ms() const { return used_ms_; }
  // It ended because the peer was silent.
  bool silent() const { return silent_; }

 private:
  Status receive(std::span<iovec> pieces, std::size_t& got, int64_t now_ms);
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
  Status ping();
  Status check_opening(const Limits& limits, int64_t now_ms, int64_t& due_ms) const;

  enum class Expect { kHeader, kPayload, kData };

  const uint64_t id_;
  const int fd_;
  Phase phase_;
  FrameUser& user_;
  PeerState peer_;

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
  bool silent_ = false;

  int64_t phase_ms_;      // since when it is in its phase
  int64_t life_ms_;       // last sign of the peer's life
  int64_t sent_ms_;       // last time that something was sent
  int64_t used_ms_;       // last time that it was used for a get or a put
  int64_t ping_ms_ = 0;   // last time that a PING was due
  int64_t begun_ms_ = 0;  // when the frame that is half here began; 0: none
};

}  // namespace millrace::tcp
