// Writer: the puts of a relay, and the readers that get them.
//
// A reader asks for ranges of a put. The writer checks that it may have them, and answers with a GRANT, where the
// channel lets readers fetch by themselves, or queues the range: the channel then takes a DATA frame of each queued
// range in turn, so that a small get is not behind a large one. A put is over when `readers` gets have released it with
// all bytes. A get that ended otherwise leaves the put open for another get, until the lease ends. A reader whose links
// are all gone has silent_ms to come back, as one that is silent; then it counts as one that released, and the put ends
// with kUnavailable.
//
// Owner: Core. Thread safety: put(), ended(), generation_of() and release() of a hold on any thread, everything else on
// the loop's. The mutex guards the table of puts and their holds; it is never held while the op table or the channel is
// called.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "relay/session/channel.h"

namespace millrace::session {

inline constexpr std::size_t kMaxRangesPerLink = 256;  // more is a broken peer; the reader waits with its own
inline constexpr std::size_t kMaxReadings = 256;       // gets of one put that are not over
inline constexpr std::size_t kMaxGetsOfPut = 4096;     // that are over: with more it is refused

class Writer : public LinkUser, public HoldOwner {
 public:
  explicit Writer(Core& core);

  // Of an op that is open and pinned: its descriptor.
  Result<std::string> put(RelayOp op);
  // The op table's: the put has ended. True: its bytes are no longer read.
  bool ended(RelayOp op, const Status& status);
  int64_t check_time(int64_t now_ms);
  void clear();  // when the channel is shut down

  Status on_frame(Link& link, const Header& header, std::span<const std::byte> payload) override;
  void on_ready(Link& link) override { serving_[&link]; }
  bool busy(const Link& link) const override;
  void on_lost(Link& link, const Status& why) override;
  bool next_data(Link& link, Outgoing& out) override;
  void release(const std::shared_ptr<Put>& put) override;

 private:
  struct Job {
    std::shared_ptr<Put> put;
    uint64_t ticket = 0;
    uint64_t offset = 0;
    uint64_t end = 0;
    bool checksum = false;
  };
  struct Serving {  // of one link
    std::deque<Job> jobs;
    std::set<std::pair<uint64_t, uint64_t>> asked;  // (op, ticket) that were not released
  };

  uint64_t generation_of(RelayOp op) const;
  std::shared_ptr<Put> find(RelayOp op) const;  // also one that has ended and is held
  Hold hold(const std::shared_ptr<Put>& put);   // empty: it has ended
  Status on_request(Link& link, const Header& header, std::span<const std::byte> payload);
  Status on_release(Link& link, const Header& header);
  Status check_request(const Link& link, const Put& put, const Header& header, const RequestBody& body) const;
  Status refuse(Link& link, uint64_t op, uint64_t ticket, const Status& why);
  void put_ended(const std::shared_ptr<Put>& put, const Status& status);
  void forget_reader(uint64_t op, const ReaderKey& key);
  void finish_reader(const std::shared_ptr<Put>& put, const ReaderKey& key, const Status& status);
  void check_lost(int64_t now_ms, int64_t& due_ms);

  Core& core_;
  std::string key_;  // of generation_of()
  std::unordered_map<Link*, Serving> serving_;
  int lost_ = 0;  // readings whose links are all gone
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Put>> puts_;  // open or held
};

}  // namespace millrace::session
