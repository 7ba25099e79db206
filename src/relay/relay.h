// Relay: moves the bytes of tensors between stages; interprets nothing. One interface, several transports (backends).
//
//      writer                                reader
//        put(parts) ---- descriptor, over the control plane ----> get(descriptor)
//        done(OK) <------------ the reader releases --------------- done(parts), then the last holder releases
//
// put() offers bytes and returns at once, in a bounded descriptor, how they are reached; the control message that
// carries the descriptor is sent before a reader waits. The reader gets them with get(), in memory that the relay
// provides (mapped, where the transport allows it: no copy) or in spans that it was given. A put is over when its
// reader has released the bytes, or the put was cancelled, or its lease ran out.
//
// What every backend keeps (relay/testing/conformance.h holds them to it):
//   1. One end. Each put() and get() that returned OK calls its `done` exactly once: OK, kDeadline, kCancelled,
//      kUnavailable (the other side is dead), kInvalidArgument (the descriptor), kTooLarge, kInternal (a wrong
//      checksum: never the wrong bytes). `done` may come before put() or get() returns.
//   2. Bounded. At most `credits` puts are open and pool_bytes are held; more is kResourceExhausted at once, never a
//      wait. A put over max_put_bytes is kTooLarge. Each descriptor is at most wire::kMaxDescriptorBytes.
//   3. Nothing leaks. After every end, credit and bytes are back, also when either side was killed, at any moment; when
//      the owner ends, by whatever way, no segment, socket file or thread of it stays behind. The one exception is rule
//      4's: what a living reader still holds after a lease ran out or a cancel keeps its credit and bytes until it lets
//      go.
//   4. No trust. A descriptor names registered things, never addresses; a wrong, old or foreign one is an error, not a
//      crash and not the bytes of another put. A slot is used again only when its reader has released it or is known to
//      be dead.
//   5. No waiting in calls. put() may copy; nothing else blocks. Progress is made on threads of the backend's own. The
//      simulated backend alone has no threads and makes progress when its caller advances it.
//
// Errors of the arguments (kInvalidArgument, kTooLarge, kResourceExhausted, kUnsupported; kUnavailable after close())
// may come from the call itself, and then `done` is never called, or through `done`. A descriptor that names what is
// over is kInvalidArgument, or kUnavailable where its writer cannot be asked any more.
//
// Thread safety: all functions from any thread. `done` is called on any thread, one of the backend's own or the
// caller's, without a lock of the relay's: it may call put(), get() and cancel(), but must not block and must not call
// close() or destroy the relay. When close() has returned, no `done` runs and none will. Once `done` of a get was
// called, no thread writes into its destination.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "tensor/shared_bytes.h"

namespace millrace {

inline constexpr std::size_t kMaxRelayParts = 4096;  // of one put; at least 1, of which each may be empty
inline constexpr int kMaxRelayReaders = 64;          // of one put

struct RelayOptions {
  std::size_t pool_bytes = std::size_t{512} << 20;  // held by open puts, at most; also the largest put
  int credits = 64;                                 // open puts
  int lease_ms = 30'000;           // from put to the reader's release; then the put ends with kDeadline
  int connect_timeout_ms = 2'000;  // to reach a peer; then the get ends with kUnavailable
  int silent_ms = 2'000;           // a peer that is silent for so long is taken for dead
  bool checksum = true;            // where the transport is not memory
  std::string listen;              // tcp: "127.0.0.1:0", "[::1]:0"; empty: the backend's default
  int streams = 0;                 // tcp: connections to one peer; 0: it chooses
  std::string run_dir;             // where socket files may stand; empty: none are made
  std::string secret;              // tcp beyond loopback: shared by all peers, at least 32 bytes
  std::string plugin_dir;          // where relay_NAME.so lie; empty: "plugins" beside the program
};

struct RelayCapabilities {
  std::string name;           // "shm"
  bool same_process = false;  // which distances it spans
  bool same_host = false;
  bool across_hosts = false;
  bool by_reference = false;    // get() hands out the very bytes that were put
  bool mapped_receive = false;  // get() without a destination copies nothing
  bool host_memory = true;      // which memory the parts may be in: others are not sent this way (docs/relay.md)
  bool cuda_memory = false;
  std::size_t max_put_bytes = 0;
};

struct PutRequest {
  std::vector<SharedBytes> parts;           // kept alive until the end
  ReqId request;                            // for cleanup() and traces
  std::string destination;                  // address() of the only reader that may get it; empty: any
  int readers = 1;                          // how many gets it is for; the put is over when so many have released it
  std::function<void(const Status&)> done;  // not null
};

struct GetRequest {
  std::string descriptor;
  ReqId request;
  int timeout_ms = 30'000;         // 0 or less: kDeadline at once
  std::vector<std::size_t> sizes;  // of all parts, as in the control message; other ones are an error
  // Empty: memory of the relay's, each part aligned to kBufferAlignment (by reference: where it was put). Else one span
  // for each part.
  std::vector<std::span<std::byte>> destination;
  // With destinations, the parts are those spans, and their owner is empty.
  std::function<void(Result<std::vector<SharedBytes>>)> done;  // not null
};

using RelayOp = StrongId<struct RelayOpTag>;
struct PutTicket {
  RelayOp op;
  std::string descriptor;
};

// What is open now. After all ends, everything but bad_frames is 0.
struct RelayBooks {
  int64_t puts = 0;
  int64_t gets = 0;
  std::size_t held_bytes = 0;  // of puts, with what readers hold of puts that have ended
  int64_t lent_parts = 0;      // received bytes that are still held
  uint64_t bad_frames = 0;     // so far: what a peer sent and was refused
};

class Relay {
 public:
  virtual ~Relay() = default;  // closes
  virtual RelayCapabilities capabilities() const = 0;
  // How peers find this instance, for PutRequest::destination; bounded by wire::kMaxRelayAddressBytes.
  virtual std::string address() const = 0;
  // On an error `done` is never called.
  virtual Result<PutTicket> put(PutRequest request) = 0;
  virtual Result<RelayOp> get(GetRequest request) = 0;
  // Ends it with kCancelled, unless it has ended. A reader that is in the middle of getting a cancelled put gets an
  // error.
  virtual void cancel(RelayOp op) = 0;
  // cancel() for all of one request.
  virtual void cleanup(ReqId request) = 0;
  virtual RelayBooks books() const = 0;
  // Ends everything with kCancelled, within kRelayCloseMs, whatever the peers do. Bytes that were received stay with
  // their holders. Idempotent.
  virtual void close() = 0;
};

inline constexpr int kRelayCloseMs = 2'000;

}  // namespace millrace
