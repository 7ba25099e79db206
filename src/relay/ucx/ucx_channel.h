// UcxChannel: the session over UCX: one worker, its endpoints and active messages, and a pool of shared memory.
//
//   push   a DATA frame is one active message; UCX sends small ones at once and large ones by rendezvous
//   pull   a put in the pool is granted to readers of the same host, which map the arena and copy the parts out
//
// The reader connects to the writer, with UCX's connection manager, whose socket breaks when a process dies.
// (Connecting by a worker's address is not safe: UCX 1.13 aborts the process when a peer dies in the middle of it.) An
// endpoint that fails is closed by force, which ends what UCX still does for it; a peer that returns introduces itself
// again.
//
// Owner: the session's core. Thread safety: as in channel.h; UCX's worker belongs to the loop's thread.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "relay/session/core.h"
#include "relay/ucx/pool.h"
#include "relay/ucx/transports.h"
#include "relay/ucx/ucx_api.h"

namespace millrace::ucx {

inline constexpr unsigned kMessageId = 1;                // of all our active messages
inline constexpr std::size_t kAloneBytes = 16u << 10;    // a part of more bytes travels by itself
inline constexpr std::size_t kPackedBytes = 64u << 10;   // smaller ones together
inline constexpr std::size_t kSegmentBytes = 4u << 20;   // the most at once: what a cancelled get still waits for
inline constexpr std::size_t kPoolFromBytes = 8u << 10;  // fewer are pushed: saves a round trip and a map
inline constexpr std::size_t kMaxKeyBytes = 1024;        // of an arena
// Of one peer's pool, mapped here: 32 of 32 MiB are a pool of 1 GiB. A get without a map takes messages.
inline constexpr std::size_t kMaxArenaMaps = 32;
// Control frames on their way to one peer. The answers to kMaxOpenGets gets fit; the link of a peer that asks for more
// and does not read ends.
inline constexpr std::size_t kMaxControlBytes = 16u << 20;
inline constexpr int kSegmentsAtOnce = 4;  // on their way to one reader
inline constexpr int kGoodbyeMs = 50;      // to get the last frames out
inline constexpr int kTeardownMs = 1'000;  // for closed endpoints to end; then they are abandoned

// Before every message: the sender's instance, then the session's header.
struct Head {
  std::array<uint8_t, 16> from{};
  session::HeaderBytes header{};
};
static_assert(sizeof(Head) == 80);

class UcxLink;

// Which part of a peer's memory is known to be mapped here.
class Mapped {
 public:
  // False: a page of it is not, or the range overflows the address space. Asked of the kernel once for each page.
  bool covers(const std::byte* at, std::size_t bytes);

 private:
  uint64_t begin_ = 0, end_ = 0;
};

class UcxChannel final : public session::Channel {
 public:
  UcxChannel(session::Core& core, const UcxApi& api, Transports transports);
  ~UcxChannel() override;
  Status open();  // kUnavailable: UCX has no such transport here

  const session::Traits& traits() const override { return traits_; }
  RelayCapabilities capabilities() const override;
  std::string address() const override;
  Result<std::string> store(session::Put& put) override;
  Result<session::Target> target_of(const Descriptor& descriptor) const override;
  Result<session::Link*> connect(const session::Target& target) override;
  bool grant(session::Link& link, session::Put& put, const session::Header& request, std::string& where) override;
  Status fetch(session::Link& link, const session::Header& header, std::span<const std::byte> where,
               const session::Fetch& fetch) override;
  void abandon(RelayOp get) override;
  bool poll() override;
  bool may_sleep() override { return api_.ucp_worker_arm(worker_) == UCS_OK; }
  int64_t nap_us() const override { return closing_.empty() ? -1 : 1'000; }
  void flush() override;
  int64_t check_time(int64_t now_ms) override;
  void compensate_pause(int64_t now_ms) override;
  bool shut_down() override;

  // Of the links. kUnavailable: kMaxControlBytes wait already; the link ends.
  Status send(UcxLink& link, const session::Header& header, std::string payload);
  void push_soon(UcxLink& link) { pushing_.push_back(&link); }

 private:
  struct Transfer;
  // What a message carries. Valid in its callback alone; with `rendezvous` it is still at the sender.
  struct Payload {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    void* rendezvous = nullptr;
    bool taken = false;
    ucp_ep_h reply = nullptr;  // of a HELLO: the endpoint that it came over
  };
  struct Copy {  // out of a peer's pool
    session::Fetch fetch;
    UcxLink* link = nullptr;
    uint64_t arena = 0;
    const std::byte* slot = nullptr;
    std::size_t part = 0;  // how far it is
    std::size_t offset = 0;
    bool abandoned = false;
  };
  using Names = std::map<std::array<uint8_t, 16>, UcxLink*>;

  Status make_worker();
  Status listen();
  Result<UcxLink*> add_link(std::unique_ptr<UcxLink> link, ucp_ep_params_t& params);
  session::LinkUser& user_of(const UcxLink& link) const;
  void fail(UcxLink& link, Status why);  // takes effect after the events that are being handled
  void close_failed();
  bool reap();  // closed endpoints; true: none is left

  static void on_connect(ucp_conn_request_h request, void* self);
  static void on_broken(void* link, ucp_ep_h ep, ucs_status_t status);
  static ucs_status_t on_message(void* self, const void* head, std::size_t head_bytes, void* data, std::size_t bytes,
                                 const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* transfer);
  static void on_taken(void* request, ucs_status_t status, std::size_t bytes, void* transfer);
  void finish(Transfer* transfer, ucs_status_t status);
  void handle(const Head& head, const session::Header& header, Payload& payload);
  void greeted(const Head& head, const session::Header& header, const Payload& payload);
  void start_send(UcxLink& link, session::Header header, std::span<const std::byte> bytes,
                  std::unique_ptr<Transfer> owned);
  void push(UcxLink& link);
  void send_data(UcxLink& link, session::Outgoing out);
  void on_data(UcxLink& link, const session::Header& header, Payload& payload);
  void take(Payload& payload, std::byte* to, std::function<void(bool complete)> done);
  const std::byte* map(UcxLink& link, uint64_t arena, std::string_view key, uint64_t address, std::size_t bytes);
  bool evict_arena(UcxLink& link);
  bool copy_some();
  bool copy_step(Copy& copy);
  void finish_copy(const Copy& copy, const Status& status);

  session::Core& core_;
  const UcxApi& api_;
  const Transports transports_;
  session::Traits traits_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<Pool> pool_;  // null: no memory is shared with others
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  std::string endpoint_;  // where it listens
  std::map<UcxLink*, std::unique_ptr<UcxLink>> links_;
  Names outgoing_;
  Names incoming_;  // those that have introduced themselves
  std::list<std::unique_ptr<UcxLink>> closing_;
  std::vector<UcxLink*> failed_;
  std::vector<UcxLink*> pushing_;
  std::deque<Copy> copies_;
  std::size_t in_flight_ = 0;  // requests that UCX has not ended
};

}  // namespace millrace::ucx
