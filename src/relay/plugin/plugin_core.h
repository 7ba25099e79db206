// Inside of the plugin relay: what its callers and its engine thread share, and the engine thread's own state.
//
// Threads: `mutex` guards what stands under it; the rest of the state belongs to the engine thread. The mutex is never
// held while the plugin or a function of the table that may end something is called. `in_use` is held shared by whoever
// touches the registered memory outside of the engine thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <plugins/relay_plugin.h>
#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/plugin/message.h"
#include "relay/session/extents.h"

namespace millrace {

inline constexpr int kPluginAskAgainMs = 100;     // also for a release
inline constexpr int kPluginFarewellMs = 300;     // at close(), to say the last releases
inline constexpr int kPluginIdlePeerMs = 30'000;  // then a peer that nothing is open with is disconnected
inline constexpr int kPluginMessagesAtOnce = 64;
// Parts begin at multiples of kBufferAlignment, so a put needs up to so much more than its bytes.
inline constexpr std::size_t kPluginSlackBytes = 2 * kMaxRelayParts * kBufferAlignment;

// Where parts lie in a range: offsets, and bytes of all.
struct PartLayout {
  std::vector<uint64_t> offsets;
  uint64_t span = 0;
};
PartLayout lay_out(const std::vector<std::size_t>& sizes);
// Of the parts that lie at `base` + offsets.
uint64_t parts_checksum(const std::byte* base, const PartLayout& layout, const std::vector<std::size_t>& sizes,
                        uint64_t generation);

struct PluginClaim {
  bool released = false;
  int64_t grant_again_ms = 0;
};
using PluginReader = std::pair<PluginInstance, uint64_t>;  // which instance, which of its gets

struct PluginPut {
  uint64_t offset = 0;
  uint64_t span = 0;
  uint64_t generation = 0;
  uint64_t sizes_hash = 0;
  uint64_t checksum = 0;
  std::string destination;
  int readers = 1;
  std::map<PluginReader, PluginClaim> claims;
  bool ended = false;

  bool somebody_reads() const;
  bool all_let_go() const;
};

struct PluginGet {
  RelayOp op;
  Descriptor descriptor;
  std::vector<std::size_t> sizes;
  PartLayout layout;
  uint64_t slot = 0;
  bool reading = false;
  bool abandoned = false;
  uint64_t transfer = 0;
  int64_t again_ms = 0;  // when to ask, or to ping
};

struct PluginPeer {
  uint64_t handle = 0;
  int64_t heard_ms = 0;
};

struct PluginRelease {
  PluginMessage message;
  int64_t again_ms = 0;
  int64_t since_ms = 0;
};

struct PluginCore {
  PluginCore(const millrace_relay_plugin* p, const RelayOptions& o);

  // ---- the engine thread
  void run();
  bool receive_messages(int64_t now);
  void on_message(const PluginMessage& message, int64_t now);
  void send(const PluginInstance& to, PluginMessage message);
  // Null where it cannot be connected.
  PluginPeer* reach(const PluginInstance& instance, const std::string& blob, int64_t now);
  bool silent(const PluginInstance& instance, int64_t now) const;
  void forget_idle_peers(int64_t now);

  // the writer's side
  void on_ask(const PluginMessage& ask, int64_t now);
  void on_release(const PluginMessage& release);
  bool watch_claims(int64_t now);
  void settle(uint64_t put, const Status& status);

  // the reader's side
  void begin_gets(int64_t now);
  void on_grant(const PluginMessage& grant, int64_t now);
  void on_refuse(const PluginMessage& refusal);
  bool work_on_gets(int64_t now);
  bool work_on(PluginGet& get, int64_t now);  // true: it is over
  void hand_over(PluginGet& get);
  void drop(const PluginGet& get, bool release, int64_t now);
  bool repeat_releases(int64_t now);

  // ---- any thread
  bool take_down(RelayOp op, bool is_put);
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(memory) + offset; }

  const millrace_relay_plugin* const plugin;
  const RelayOptions options;
  const std::string name;
  InstanceId id;
  std::string blob;
  millrace_relay_engine* engine = nullptr;
  void* memory = nullptr;
  std::shared_mutex in_use;

  std::mutex mutex;
  std::condition_variable wake;
  session::Extents send_pool, receive_pool;
  std::map<uint64_t, PluginPut> puts;  // by op
  std::deque<PluginGet> new_gets;
  bool stopping = false;
  bool stopped = false;

  // The engine thread's own.
  std::map<PluginInstance, PluginPeer> peers;
  std::map<uint64_t, PluginGet> gets;  // by op
  std::map<uint64_t, PluginRelease> releases;

  OpTable table;  // last: its end uses the others
};

}  // namespace millrace
