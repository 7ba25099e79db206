// NcclChannel: the session over NCCL: frames travel on TCP connections as in the tcp relay, bytes between the devices.
//
// Each connection has a communicator of two ranks. After the handshake the writer sends JOIN with NCCL's unique id, and
// both join. A frame of a put is announced by a GRANT; then the writer posts ncclSend and the reader ncclRecv, so that
// nothing is under way on the device unless both sides have agreed to it. One frame at a time travels on a link:
// straight from and to a part that stands alone in device memory, else by way of the staging buffers.
//
// Owner: the session's core. Thread safety: as in channel.h; CUDA and NCCL are called on the loop's thread, except to
// ask where a part lies. Invariant: what a communicator reads or writes stays until it is over or aborted.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nccl/communicator.h"
#include "relay/tcp/sockets.h"

namespace millrace::nccl {

inline constexpr std::size_t kDirectBytes = std::size_t{256} << 10;  // a part of this size stands alone
inline constexpr int kJoinMs = 30'000;                               // for both sides to make the communicator
inline constexpr int kFrameMs = 10'000;                              // for one frame to travel

class NcclChannel final : public session::Channel {
 public:
  NcclChannel(session::Core& core, const Api& api, int device);
  Status open(const tcp::SocketAddress& listen) { return sockets_.open(listen); }

  const session::Traits& traits() const override { return traits_; }
  RelayCapabilities capabilities() const override;
  std::string address() const override { return sockets_.address(); }
  Status check_put(const PutRequest& request) const override;
  Result<std::string> store(session::Put& put) override;
  Result<session::Target> target_of(const Descriptor& descriptor) const override;
  Result<session::Link*> connect(const session::Target& target) override { return sockets_.connect(target); }
  Result<std::optional<session::Landing>> make_memory(const GetRequest& request,
                                                      const session::Layout& layout) override;
  Status fetch(session::Link& link, const session::Header& header, std::span<const std::byte> where,
               const session::Fetch& fetch) override;
  bool poll() override;
  int64_t nap_us() const override;
  void flush() override;
  int64_t check_time(int64_t now_ms) override;
  void compensate_pause(int64_t now_ms) override { sockets_.compensate_pause(now_ms); }
  bool shut_down() override;

 private:
  // Stands between the connections of one side and the session, for what is NCCL's: JOIN, and the end of a link.
  class JoinUser final : public session::LinkUser {
   public:
    JoinUser(NcclChannel& channel, session::LinkUser& user) : channel_(channel), user_(user) {}
    Status on_frame(session::Link& link, const session::Header& header, std::span<const std::byte> payload) override;
    void on_ready(session::Link& link) override;
    bool busy(const session::Link& link) const override;
    void on_lost(session::Link& link, const Status& why) override;

   private:
    NcclChannel& channel_;
    session::LinkUser& user_;
  };
  struct Receive {
    session::Fetch fetch;  // without a layout: its get is over, and the bytes go nowhere
    uint64_t size = 0;
  };
  enum class Step { kJoining, kIdle, kGathering, kSending, kReceiving, kScattering };
  struct Pair {  // of one link
    session::Link* link = nullptr;
    bool writes = false;
    std::unique_ptr<Communicator> communicator;  // null: the reader waits for JOIN
    Step step = Step::kJoining;
    int64_t due_ms = 0;            // of the step
    session::Outgoing out;         // what is being staged or sent
    std::deque<Receive> receives;  // the first is the one that is being received
    bool pinned = false;           // it is
  };

  Status join(Pair& pair, const UniqueId& id, int rank);
  Status progress(Pair& pair, bool& any);
  Status start_send(Pair& pair);
  Status send(Pair& pair, const std::byte* from);
  Status start_receive(Pair& pair);
  Status scatter(Pair& pair);
  void finish_receive(Pair& pair, const Status& status);
  void close_broken();

  session::Core& core_;
  const Api& api_;
  const int device_;
  session::Traits traits_;
  JoinUser writer_user_;
  JoinUser reader_user_;
  std::unordered_map<const session::Link*, Pair> pairs_;
  std::vector<std::pair<session::Link*, Status>> broken_;
  tcp::Sockets sockets_;  // the last member: its connections name the sides and pairs
};

}  // namespace millrace::nccl
