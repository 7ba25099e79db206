// PluginChannel: the session over a plugin of plugins/relay_plugin.h. put() copies into registered memory; a GRANT
// states where the copy lies and what it sums to, and the reader's plugin reads it from there into registered memory of
// its own. Messages may be lost, so the session repeats them.
//
// A read that the plugin does not end keeps its destination, and the writer's copy, until the plugin reports that it is
// over. Host memory only; twice the pool is registered, once for what is put and once for what is read.
//
// Owner: the session's core. Thread safety: as in channel.h; all calls into the plugin come from the loop's thread.
// Memory: `in_use` is held shared by a put that copies, because shut_down() takes the memory away.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>

#include <plugins/relay_plugin.h>
#include "relay/plugin/message.h"
#include "relay/session/core.h"
#include "relay/session/extents.h"
#include "wire/limits.h"

namespace millrace::plugin {

inline constexpr int kIdlePeerMs = 30'000;  // then a peer that nothing is open with is disconnected
inline constexpr int kMessagesAtOnce = 64;
// Each link costs a handle of the plugin's and a connect() on the loop's thread.
inline constexpr std::size_t kMaxInbound = wire::kMaxPeers;   // that peers' messages made
inline constexpr std::size_t kMaxOutbound = wire::kMaxPeers;  // that gets made
inline constexpr int kFarewellMs = 3 * session::kRepeatMs;    // the last RELEASE may be lost twice
// Parts begin at multiples of kBufferAlignment, so a put needs up to so much more than its bytes.
inline constexpr std::size_t kSlackBytes = 2 * kMaxRelayParts * kBufferAlignment;

// The half of the registered memory that puts are copied to; outlives the channel, as puts do.
struct SendMemory {
  explicit SendMemory(uint64_t bytes) : extents(0, bytes) {}
  std::shared_mutex in_use;
  bool open = true;  // under in_use
  std::mutex mutex;
  session::Extents extents;  // under the mutex
};

// What store() made of a put. The destructor releases the extent, so there is one object for each.
struct Stored {
  Stored(std::shared_ptr<SendMemory> memory_in, uint64_t offset_in, uint64_t span_in, uint64_t checksum_in)
      : memory(std::move(memory_in)), offset(offset_in), span(span_in), checksum(checksum_in) {}
  Stored(const Stored&) = delete;
  Stored& operator=(const Stored&) = delete;
  ~Stored();

  const std::shared_ptr<SendMemory> memory;
  const uint64_t offset;
  const uint64_t span;
  const uint64_t checksum;
};

class PluginChannel final : public session::Channel {
 public:
  PluginChannel(session::Core& core, const millrace_relay_plugin& plugin);
  ~PluginChannel() override;
  Status open();

  const session::Traits& traits() const override { return traits_; }
  RelayCapabilities capabilities() const override;
  std::string address() const override { return address_of(core_.instance.random); }
  Result<std::string> store(session::Put& put) override;
  Result<session::Target> target_of(const Descriptor& descriptor) const override;
  Result<session::Link*> connect(const session::Target& target) override;
  bool grant(session::Link& link, session::Put& put, const session::Header& request, std::string& where) override;
  Status fetch(session::Link& link, const session::Header& header, std::span<const std::byte> where,
               const session::Fetch& fetch) override;
  void abandon(RelayOp get) override;
  bool poll() override;
  int64_t nap_us() const override;
  int64_t check_time(int64_t now_ms) override;
  void compensate_pause(int64_t now_ms) override;
  bool shut_down() override;

 private:
  struct Peer {
    uint64_t handle = 0;
    int uses = 0;  // by links and reads
  };
  class PluginLink;
  struct Read {
    session::Fetch fetch;
    Instance from{};
    uint64_t source = 0;  // where it lies at the writer
    uint64_t checksum = 0;
    std::optional<uint64_t> extent;  // of receive_; none: it waits for memory, behind those that wait already
    uint64_t transfer = 0;
    bool abandoned = false;
  };
  using Links = std::map<std::pair<Instance, bool>, std::unique_ptr<PluginLink>>;  // bool: we read over it

  std::string address_of(const Instance& instance) const;
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(memory_) + offset; }
  Result<PluginLink*> add_link(const Instance& instance, bool reads, const std::string& blob);
  void remove_link(Links::iterator at, const Status& why);
  void release_peer(const Instance& instance);
  bool receive_messages();
  void on_message(const Message& message);
  Status begin_read(Read& read);
  void begin_waiting();
  bool finish_reads();
  void finish_read(std::list<Read>::iterator at, const Status& status);
  Status deliver(const Read& read) const;
  session::LinkUser& user_of(bool reads) const;

  session::Core& core_;
  const millrace_relay_plugin& plugin_;
  const uint64_t half_;  // of the registered memory
  session::Traits traits_;
  millrace_relay_engine* engine_ = nullptr;
  void* memory_ = nullptr;
  std::string blob_;
  const std::shared_ptr<SendMemory> send_;
  session::Extents receive_;
  std::map<Instance, Peer> peers_;
  Links links_;
  std::list<Read> reads_;
  bool active_ = false;  // messages came in the last poll()
};

}  // namespace millrace::plugin
