// Control: one framed TCP connection between two NCCL relays, for what is not bytes of puts: who we are, what is asked
// for, which piece comes next, and whether the other side lives. docs/relay-nccl.md has the frames byte by byte.
//
// Life: any byte that comes. While `busy`, a side that has sent nothing for a quarter of silent_ms sends a PING, which
// is answered at once by whoever reads next, and a peer without a sign of life for silent_ms is dead.
//
// Thread safety: one thread, that of its Link; only wake() and stop() from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::nccl {

// R: sent by the reader, which opens the connection. W: sent by the writer.
enum class FrameType : uint8_t {
  kHello = 1,      // R: code 1 with a secret; a = its instance, b = the instance it looks for; nonce, address
  kChallenge = 2,  // W: nonce
  kProof = 3,      // R: HMAC
  kWelcome = 4,    // W: HMAC where there is a secret
  kAsk = 5,        // R: ticket; a = put, b = generation; bytes of the put, hash of its sizes
  kGrant = 6,      // W: ticket; a bit for each part: in device memory
  kMore = 7,       // R: ticket; a = offset of the piece it wants
  kPiece = 8,      // W: ticket; a = offset: it is on its way
  kRefuse = 9,     // W: ticket, 0: the whole connection; code = StatusCode; why
  kRelease = 10,   // R: ticket; code 0: has all bytes, else the StatusCode it ended with
  kPing = 11,      // both
  kPong = 12,      // both
  kJoin = 13,      // W: unique id of the communicator
};

struct Frame {
  FrameType type = FrameType::kPing;
  uint16_t code = 0;
  uint64_t ticket = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  std::string payload;
};

inline constexpr std::size_t kFrameHeaderBytes = 36;
inline constexpr std::size_t kMaxFramePayload = 1024;
inline constexpr std::size_t kMaxFramesAhead = 64;  // that came and were not looked at

std::string encode(const Frame& frame);
// Takes one frame from the front of `bytes`; nullopt: there is not a whole one. kInvalidArgument: it is none.
Result<std::optional<Frame>> take_frame(std::string& bytes);

class Control {
 public:
  Control(int fd, int silent_ms);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Until it is connected. kUnavailable also after timeout_ms.
  Status finish_connect(int timeout_ms);
  // kUnavailable: the peer is gone, or reads nothing for silent_ms.
  Status send(const Frame& frame);
  // Waits, wait_us or kPollMs at most, until something comes or wake(), and keeps the frames that came. kUnavailable:
  // the peer is gone, or refuses the connection and says why. kCancelled: stopped.
  Status pump(int64_t wait_us);
  // The next frame, waiting for it as pump() does; nullopt: none came. PING and PONG never come out.
  Result<std::optional<Frame>> take(int64_t wait_us);
  // The next frame, by deadline_ms of relay_now_ms(); -1: never. kDeadline.
  Result<Frame> expect(int64_t deadline_ms);
  void set_busy(bool busy);
  void set_patience(int silent_ms) { silent_ms_ = silent_ms; }
  // The peer sees the end of the connection now, and not when this object goes.
  void hang_up();

  void wake();
  void stop();
  bool stopped() const { return stopped_.load(); }

 private:
  Status flush(int64_t deadline_ms);
  Status read_some();
  Status check_life();

  const int fd_;
  const int wake_fd_;
  int silent_ms_;
  std::atomic<bool> stopped_{false};
  std::string in_;
  std::string out_;
  std::deque<Frame> frames_;  // that came and were not taken
  bool busy_ = false;
  int64_t heard_ms_;
  int64_t sent_ms_;
};

}  // namespace millrace::nccl
