// Link: one UCX worker with the thread that makes its progress, the peers it is connected with, and their liveness.
//
// The thread owns the worker and everything that is said here to belong to it; others hand it jobs with post(). It
// stays awake a little where messages come quickly (relay/spin.h), else it sleeps on a descriptor of UCX's until a
// message, a job or the next due time.
//
// Liveness is our own, because UCX's shared memory has none: while somebody here waits for a peer (interest), it is
// pinged four times in silent_ms, and a peer that says nothing for silent_ms is gone. So is one whose connection UCX
// calls broken, or that says goodbye. A peer that is gone is told to on_gone() once, then its connection is closed by
// force, which ends what UCX still did for it; a peer that comes back introduces itself again and is a new one.
//
// Who reads connects to who writes, with UCX's connection manager, whose socket breaks when a process dies. Two relays
// that read from each other have two connections. (Connecting by a worker's address is not safe: UCX 1.13 aborts the
// process when a peer dies in the middle of it.)
//
// Thread safety: as each function says. Owner: the relay's core, which its thread keeps alive as well.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "relay/relay.h"
#include "relay/ucx/frame.h"
#include "relay/ucx/transports.h"
#include "relay/ucx/ucx_api.h"

namespace millrace::ucx {

inline constexpr std::size_t kMaxArenaMaps =
    32;                                    // of one peer's pool, mapped here; a get that finds no room takes messages
inline constexpr int kGoodbyeMs = 50;      // to get the last frames out
inline constexpr int kTeardownMs = 1'000;  // for closed connections to let go; then they are abandoned

class Link;

// An arena of a peer's pool, mapped here.
struct ArenaMap {
  ucp_rkey_h key = nullptr;
  int users = 0;  // gets that copy from it, or are about to
};

// Belongs to the thread.
struct Peer {
  Link* link = nullptr;
  InstanceId id;          // all zeros: it has not said yet
  bool incoming = false;  // it connected to us: it reads, we write
  ucp_ep_h ep = nullptr;
  bool open = false;   // it has answered
  bool gone = false;   // on its way out; nothing is sent
  Status why;          // it is gone
  int interest = 0;    // who waits for it
  int64_t due_ms = 0;  // to answer at all
  int64_t heard_ms = 0;
  int64_t ping_ms = 0;  // the next one
  std::map<uint64_t, ArenaMap> arenas;
  ucs_status_ptr_t closing = nullptr;
};

// What a frame carries. Valid in on_frame() alone; with `rendezvous` it is still at the sender, and take() brings it.
struct Payload {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  void* rendezvous = nullptr;
  bool* taken = nullptr;
  ucp_ep_h reply = nullptr;  // of a kHello: the connection that it came over
};

// All called on the thread.
class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void on_open(Peer& peer) = 0;
  virtual void on_frame(Peer& peer, const Frame& frame, const Payload& payload) = 0;
  virtual void on_bad_frame() = 0;
  virtual void on_gone(Peer& peer, const Status& why) = 0;
  virtual bool on_idle() = 0;                   // whether there was something to do
  virtual int64_t on_time(int64_t now_ms) = 0;  // in how many ms it wants to be called again; -1: not by itself
};

class Link {
 public:
  // kUnavailable: UCX has no such transport here.
  static Result<std::unique_ptr<Link>> make(const UcxApi& api, const Transports& transports,
                                            const RelayOptions& options);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Any thread.
  const UcxApi& api() const { return api_; }
  ucp_context_h context() const { return context_; }
  const InstanceId& self() const { return self_; }
  const std::string& address() const { return address_; }  // where it listens, for connect()
  void post(std::function<void()> job);                    // after stop() it is dropped
  void wake_by(int64_t due_ms);                            // on_time() is called then at the latest
  void stop();                                             // run() says goodbye, closes and returns

  // The thread: until stop(). False: connections did not let go in time, and are abandoned with a line in the log.
  bool run(LinkEvents& events);

  // On the thread.
  Result<Peer*> connect(const InstanceId& id, const std::string& address);  // or the connection that there is
  void send(Peer& peer, Frame frame, std::string_view payload = {});
  // Not copied: they stay as they are until `done`, which comes on the thread, perhaps before this returns.
  void send_bytes(Peer& peer, Frame frame, std::span<const std::byte> bytes, std::function<void(bool sent)> done);
  void take(const Payload& payload, std::byte* to, std::function<void(bool whole)> done);
  // Where `address` of an arena of the peer's stands here, until unmap(); null where it cannot be mapped, or where
  // kMaxArenaMaps others are all in use.
  const std::byte* map(Peer& peer, uint64_t arena, std::string_view key, uint64_t address);
  // Once for each map(). The arena stays as long as there is room.
  void unmap(Peer& peer, uint64_t arena);
  void fail(Peer& peer, Status why);  // takes effect after the events that are being handled
  void add_interest(Peer& peer);
  void drop_interest(Peer& peer) { --peer.interest; }

 private:
  struct Transfer;

  Link(const UcxApi& api, const RelayOptions& options);
  Status set_up(const Transports& transports);
  Status make_worker();
  Status listen();
  static void on_connect(ucp_conn_request_h request, void* self);
  static ucs_status_t on_message(void* self, const void* head, std::size_t head_bytes, void* data, std::size_t bytes,
                                 const ucp_am_recv_param_t* param);
  static void on_broken(void* peer, ucp_ep_h ep, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* transfer);
  static void on_taken(void* request, ucs_status_t status, std::size_t bytes, void* transfer);
  void finish(Transfer* transfer, ucs_status_t status);
  void handle(const Frame& frame, const Payload& payload);
  void greeted(const Frame& frame, const Payload& payload);
  Result<Peer*> add_peer(std::unique_ptr<Peer> peer, ucp_ep_params_t& params);
  void remove(const Peer& peer);  // from the table of its kind
  void bury();                    // peers that failed
  bool reap();                    // closed connections; true: none is left
  bool turn();                    // once around; whether something happened
  bool make_room(Peer& peer);     // for one more arena
  bool run_jobs();
  void keep_time(bool late);
  int64_t watch(int64_t now_ms);  // liveness; when it is due again
  void sleep();
  bool tear_down();

  const UcxApi& api_;
  const RelayOptions options_;
  const InstanceId self_ = make_instance_id();
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  Transports transports_;
  std::string address_;
  int ucx_fd_ = -1;   // UCX's
  int wake_fd_ = -1;  // ours

  // The thread's.
  LinkEvents* events_ = nullptr;
  using Names = std::map<std::array<uint8_t, 16>, Peer*>;
  std::map<Peer*, std::unique_ptr<Peer>> peers_;
  Names outgoing_;
  Names incoming_;  // those that have said who they are
  std::list<std::unique_ptr<Peer>> closing_;
  std::vector<Peer*> failed_;
  std::size_t in_flight_ = 0;  // requests that UCX has not ended
  int64_t time_ms_ = 0;        // of the last keep_time()
  int64_t next_ms_ = 0;        // of the next

  std::mutex mutex_;
  std::vector<std::function<void()>> jobs_;
  int64_t planned_ms_ = 0;  // when keep_time() is called next, as far as wake_by() is concerned
  bool wanted_ = false;     // it is wanted earlier
  bool stopped_ = false;    // run() is over
  std::atomic<bool> pending_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace millrace::ucx
