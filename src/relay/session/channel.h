// Channel: a transport under the session protocol. It connects two relays, carries their frames, and moves the bytes of
// a put in one of three ways; everything else (what a reader may have, credits, deadlines, repetition, what ends how)
// is the session's: Writer and Reader.
//
//   push      the channel asks the writer for its next DATA frame when it has space, and sends it   (tcp, ucx)
//   pull      grant() offers the reader where the bytes lie, fetch() reads them from there          (plugins, ucx)
//   two-sided as push, where the frame is a GRANT and both sides post the transfer                  (nccl)
//
// Link: one connection with one peer in one role: the side that opened it reads, the side that accepted it writes. Two
// relays that read from each other have two links.
//
// Owner: Core owns the channel, the channel owns its links. Threads: as stated at each function; what the loop's thread
// calls does not wait.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/relay.h"
#include "relay/session/frame.h"
#include "relay/session/layout.h"
#include "relay/session/liveness.h"
#include "relay/session/put.h"

namespace millrace::session {

struct Core;

// The relay at the other end.
struct PeerName {
  uint64_t instance = 0;  // key_of() its instance
  std::string label;      // its Relay::address(), as it introduced itself
};

// The 64 bits of an instance that travel in frames; never 0.
uint64_t key_of(const InstanceId& instance);

class Link {
 public:
  explicit Link(int64_t now_ms) : liveness(now_ms) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  virtual bool ready() const = 0;
  // Queues a control frame. kUnavailable: the peer reads nothing, and the queue is full.
  virtual Status send(const Header& header, std::span<const std::byte> payload = {}) = 0;
  // The writer has something for next_data().
  virtual void wake() {}
  // The put ends: bytes of it that are on their way are copied, and its hold is released, where that is cheap.
  virtual void detach(const Put&) {}
  // From now on something is expected of the peer.
  void begin_use(bool was_busy, int64_t now_ms) {
    if (!was_busy) liveness.seen_ms = now_ms;
    used_ms = now_ms;
  }

  PeerName peer;
  Liveness liveness;
  int64_t used_ms = 0;  // last time that a get or a put used it
  int patience_ms = 0;  // of silence, where it is more than silent_ms
  bool silent = false;  // it ended because the peer was dead
};

// A DATA frame that the channel is to send; released when the transport has the bytes.
struct Outgoing {
  Header header;
  Hold put;
};

// What the session does with a link: Writer for accepted links, Reader for opened ones. All on the loop's thread. An
// error that one of these returns ends the link with it.
class LinkUser {
 public:
  virtual ~LinkUser() = default;
  // A whole frame of the session's that is not DATA.
  virtual Status on_frame(Link& link, const Header& header, std::span<const std::byte> payload) = 0;
  virtual void on_ready(Link& link) = 0;
  // Is something expected of the peer?
  virtual bool busy(const Link& link) const = 0;
  // The link ends; it is destroyed when this returns.
  virtual void on_lost(Link& link, const Status& why) = 0;
  // Push: the next DATA frame to send; false: there is none.
  virtual bool next_data(Link&, Outgoing&) { return false; }
  // Byte streams: a DATA frame begins. Then, until it is complete, again and again: where its next bytes go, and how
  // many came; between the two the memory is the channel's. The sum is its trailer, 0 where it has none.
  virtual Status data_begin(Link&, const Header& header) {
    return invalid_argument("a reader sent a {}", frame_type_name(header.type));
  }
  virtual std::size_t data_space(Link&, std::span<iovec>) { return 0; }
  virtual void data_received(Link&, std::size_t) {}
  virtual Status data_end(Link&, uint64_t) { return ok_status(); }
};

// Which writer a descriptor names, taken from its tail.
struct Target {
  InstanceId instance;
  std::string key;           // equal for gets that share links
  std::string endpoint;      // where it listens
  std::vector<bool> device;  // nccl: which parts are in device memory
  bool loopback = true;
};

// Where the parts of a get go.
struct Landing {
  PartMap into;
  std::vector<SharedBytes> parts;  // as `done` gets them
  std::size_t memory = 0;          // of the quota for received bytes
  bool direct = false;             // into the caller's spans: written only while the get is pinned
};

// A range of a get that the channel brings: granted, or a message whose bytes follow. Ends with Reader::fetched().
struct Fetch {
  Link* link = nullptr;  // it came over; may be gone
  uint64_t route = 0;    // the reader's
  RelayOp get;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t generation = 0;         // of the put
  const Layout* layout = nullptr;  // of the get; valid until fetched(), as the next
  Landing* landing = nullptr;
};

// Copies parts that lie in a block as the layout places them; not where the get has ended meanwhile.
void copy_block(OpTable& table, const Fetch& fetch, const std::byte* block);

struct Traits {
  FrameRules frames;
  std::size_t range_bytes = SIZE_MAX;  // of one REQUEST; 0: a frame
  int ranges_in_flight = 1;            // of one get on one link
  std::size_t max_get_bytes = 0;       // 0: pool_bytes
  int reconnects = 0;                  // breaks that one get survives, of one link or of several at once
  int farewell_ms = 100;               // for the last frames and transfers, at close()
  bool repeats = false;                // frames may be lost: REQUEST and RELEASE are repeated until they are answered
  bool hold_grants = false;            // what was granted stays until the RELEASE
  bool polled = false;                 // frames arrive without waking the loop, whose naps an open put shortens
  bool separate_deadlines = false;     // the transport may hang: deadlines are another thread's
};

class Channel {
 public:
  virtual ~Channel() = default;

  // ---- any thread
  virtual const Traits& traits() const = 0;
  virtual RelayCapabilities capabilities() const = 0;
  virtual std::string address() const = 0;                    // for PutRequest::destination
  virtual Status check_put(const PutRequest& request) const;  // by default: host memory only
  // A put begins: copies its bytes into `stored` where the transport wants them, and returns the descriptor's tail.
  virtual Result<std::string> store(Put& put) = 0;
  // kInvalidArgument: the tail is none of this channel's.
  virtual Result<Target> target_of(const Descriptor& descriptor) const = 0;

  // ---- the loop's thread
  virtual Result<Link*> connect(const Target& target) = 0;
  virtual std::size_t links_wanted(const Target&, uint64_t) const { return 1; }
  // Memory for a get without destinations; nullopt: the session's.
  virtual Result<std::optional<Landing>> make_memory(const GetRequest&, const Layout&) {
    return std::optional<Landing>();
  }
  // Whether the reader may fetch the range by itself: fills the GRANT's payload.
  virtual bool grant(Link&, Put&, const Header&, std::string&) { return false; }
  // Begins to fetch what was granted. kUnsupported: it cannot, and asks for DATA frames.
  virtual Status fetch(Link&, const Header&, std::span<const std::byte>, const Fetch&) {
    return Status(StatusCode::kInternal, "the writer granted what this transport does not fetch");
  }
  // The get is over: what is being fetched may end early. fetched() still comes.
  virtual void abandon(RelayOp) {}
  virtual bool poll() { return false; }            // makes progress; whether there was any
  virtual bool may_sleep() { return true; }        // false: look again first
  virtual int64_t nap_us() const { return -1; }    // poll() is wanted again so soon; -1: events wake the loop
  virtual void flush() {}                          // what was queued in this turn goes out
  virtual int64_t check_time(int64_t now_ms) = 0;  // when it is to be called again; INT64_MAX: not by itself
  // The loop was late (stopped or starved): that a peer was not seen is not its fault.
  virtual void compensate_pause(int64_t) {}
  // Closes all links; then nothing of the transport touches any memory of gets and puts. False: something was
  // abandoned.
  virtual bool shut_down() = 0;
};

}  // namespace millrace::session
