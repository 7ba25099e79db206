// Writer: the books of what a relay has put: slots, the pool behind them, and which readers hold what.
//
//        offer()                    its readers release, cancel, lease           no reader holds it
//   free -------> open (offered) -----------------------------------> draining ---------------> free
//                                          (revoked)
//
// The private books are the truth. Of shared memory the writer writes the state table, and believes a reader's hold
// table only as far as it speaks of that reader: a reader that lies in it hurts no other reader, for a slot is used
// again only when no hold table of a living reader that its put is for names its generation. A reader that is gone
// holds nothing, and what it held counts as released; the put then ends with kUnavailable instead of OK.
//
// Owner: the shared-memory relay (shm_relay.cc), whose OpTable it refers to.
// Thread safety: all functions from any thread. Ends are reported to the OpTable without our lock.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/relay.h"
#include "relay/shm/layout.h"
#include "relay/shm/pool.h"

namespace millrace::shm {

class Writer {
 public:
  static Result<std::unique_ptr<Writer>> make(const RelayOptions& options, const InstanceId& self, OpTable& table);

  // The rest of a put whose op is open and pinned: copies the parts into the pool and offers them.
  Result<Descriptor> offer(RelayOp op, const PutRequest& request, uint64_t destination);
  // The OpTable reports the end of a put: revokes it. True: no reader holds its bytes.
  bool ended(RelayOp op);
  // Looks at all holds: ends the puts that are over, and takes back what is held no more.
  void sweep();
  // Whether a reader that releases must ring the bell. To be set before the last sweep().
  void set_asleep(bool asleep) { header().asleep.store(asleep ? 1 : 0); }

  // A reader connected: what it is to be sent, and the ends of the memory.
  struct Share {
    Welcome welcome;
    Fd holds;  // the new hold table
    int pool = -1;
    int state = -1;
  };
  Result<Share> add_reader(uint64_t id, uint64_t reader);
  // It is dead, or closed and no reader has bytes of ours any more.
  void remove_reader(uint64_t id);
  bool has_reader(uint64_t reader) const;
  // The puts that are for this reader alone, and that no reader holds, end with kUnavailable.
  void destination_gone(uint64_t reader);

  // From here on gets fail with kUnavailable.
  void stop_offering() { header().closed.store(1); }
  // After the table's close(): gives up what is still held. The holders keep their bytes, the memory is theirs.
  void close();

 private:
  struct Slot {
    enum class State { kFree, kOpen, kDraining };
    State state = State::kFree;
    uint32_t generation = 0;
    RelayOp op;
    Extent extent;
    uint32_t readers = 0;
    uint64_t destination = 0;
    uint32_t released = 0;  // by readers that are gone
    uint32_t died = 0;      // gets that were held when their reader went
    bool odd = false;       // a reader's table held impossible counts
  };
  struct Reader {
    uint64_t self = 0;
    Mapping holds;
  };
  struct Tally {
    uint32_t held = 0;
    uint32_t released = 0;
  };

  Writer(const RelayOptions& options, OpTable& table);
  StateHeader& header() const { return *reinterpret_cast<StateHeader*>(state_.data()); }
  SlotRecord& record(uint32_t slot) const {
    return reinterpret_cast<SlotRecord*>(state_.data() + sizeof(StateHeader))[slot];
  }
  // A put for one reader alone is neither ended nor held by what another one's table claims of it.
  static bool is_for(const Slot& slot, const Reader& reader) {
    return slot.destination == 0 || slot.destination == reader.self;
  }
  static Hold hold_of(const Reader& reader, uint32_t slot) {
    return unpack(reinterpret_cast<const std::atomic<uint64_t>*>(reader.holds.data())[slot].load());
  }
  void copy_in(const PutRequest& request, std::span<const std::size_t> sizes, const Extent& extent) const;
  Tally tally(uint32_t index);  // these four under the lock
  void free_slot(uint32_t index);
  uint32_t fill_slot(RelayOp op, const PutRequest& request, const Extent& extent, uint64_t destination);
  void publish(uint32_t index, const Descriptor& descriptor, uint64_t key);
  uint64_t next_key();

  OpTable& table_;
  const uint32_t slot_count_;
  InstanceId self_;
  uint64_t key_seed_ = 0;
  uint64_t key_stream_ = 0;
  uint64_t keys_ = 0;
  Mapping state_;
  Fd state_fd_;  // for reading
  std::unique_ptr<Pool> pool_;

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;  // the last one is the warmest
  std::unordered_map<RelayOp, uint32_t> slot_of_;
  std::map<uint64_t, Reader> readers_;
  int copying_ = 0;  // threads inside offer()
};

}  // namespace millrace::shm
