// OpTable: the open puts and gets of one relay, for every backend: ids, credits and bytes, deadlines, and that each one
// ends exactly once.
//
// Life of an op:
//      open_put() / open_get()      takes a credit and the bytes; the op is pinned
//        the backend sets up what it needs; on a failure: forget(), and its call returns the error
//      unpin()                      from here on it may end
//      end_put() / end_get() / cancel() / cleanup() / expire() / close()      the first one counts
//        ended(op, ...)             the backend tears down what it had of the op
//        done(...)                  the caller is notified
//      release()                     only where ended() reported that a reader still holds the bytes
//
// pin() holds an end back while the backend works on the op (copies into its destination, reads its parts): an end that
// comes in between waits for unpin(), which then delivers it, on its own thread. So after `done` no thread uses what
// belongs to the caller.
//
// Time is given by the caller, in ms of any clock that does not go back: monotonic_ms(), or a simulation's.
//
// Thread safety: all functions from any thread. ended() and done() are called without the table's lock; a backend must
// not hold a lock of its own that ended() or done() may want while it calls a function that ends something. Except in
// close(), nothing waits. Owner: the relay; close() it before anything that ended() uses is gone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "relay/relay.h"

namespace millrace {

inline constexpr std::size_t kMaxOpenGets = 1u << 16;  // of one relay

// What is wrong with the request by itself, or OK. kTooLarge: parts or bytes over the limit. kDeadline: timeout_ms <=
// 0.
Status check_put(const PutRequest& request, std::size_t max_put_bytes);
Status check_get(const GetRequest& request);
std::size_t total_bytes(const PutRequest& request);

// The options' own ranges: credits, lease, timeouts of 1 or more and so on.
Status check_options(const RelayOptions& options);

class OpTable {
 public:
  // The backend's part in an end, before `done`. For a put: true where its bytes are free now; false where a reader
  // still holds them, and release() will be called. For a get the answer does not count.
  using Ended = std::function<bool(RelayOp op, bool is_put, const Status& status)>;

  OpTable(const RelayOptions& options, Ended ended);
  ~OpTable();  // closes
  OpTable(const OpTable&) = delete;
  OpTable& operator=(const OpTable&) = delete;

  // kResourceExhausted: no credit, or not `bytes` left of the pool. kUnavailable: closed. Pinned once.
  Result<RelayOp> open_put(PutRequest request, std::size_t bytes, int64_t now_ms);
  Result<RelayOp> open_get(GetRequest request, int64_t now_ms);
  // Of an op whose set-up failed: no ended(), no done(). Also where an end waits for unpin().
  void forget(RelayOp op);

  // False: it has ended, or its end waits for unpin(). Each true is followed by one unpin().
  bool pin(RelayOp op);
  void unpin(RelayOp op);

  // The request, kept alive by the pointer beyond the end; null when it has ended. Its `done` is not there.
  std::shared_ptr<const PutRequest> put(RelayOp op) const;
  std::shared_ptr<const GetRequest> get(RelayOp op) const;

  // False: it has ended already, or an earlier end waits for unpin().
  bool end_put(RelayOp op, Status status);
  bool end_get(RelayOp op, Result<std::vector<SharedBytes>> result);
  bool end(RelayOp op, Status error);  // of either kind, with an error
  void cancel(RelayOp op);
  void cleanup(ReqId request);
  // Ends with kDeadline what is due. Returns in how many ms something is due next; -1: nothing is open.
  int64_t expire(int64_t now_ms);
  // The reader of a put that has ended releases it: credit and bytes are back. A second one is ignored.
  void release(RelayOp op);

  void count_bad_frame() { bad_frames_.fetch_add(1, std::memory_order_relaxed); }
  // Wraps received parts: counted in books().lent_parts as long as they are held; on_release is called once, when the
  // last holder of the last one went, on his thread (of nothing: at once). It may come after the table is gone.
  std::vector<SharedBytes> lend(std::vector<SharedBytes> parts, std::function<void()> on_release = nullptr);

  RelayBooks books() const;
  bool closed() const;
  // Opens no more, ends everything with kCancelled and waits, kRelayCloseMs at most, until what is pinned or in a
  // callback on another thread is over. Idempotent.
  void close();

 private:
  struct End {
    Status status;
    std::vector<SharedBytes> parts;  // of a get that is OK
  };
  struct Entry {
    std::shared_ptr<PutRequest> put;  // one of the two
    std::shared_ptr<GetRequest> get;
    std::function<void(const Status&)> put_done;
    std::function<void(Result<std::vector<SharedBytes>>)> get_done;
    ReqId request;
    std::size_t bytes = 0;
    int64_t due_ms = 0;
    int pins = 0;
    std::optional<End> pending;  // the end that waits for unpin()
  };
  using Entries = std::unordered_map<RelayOp, Entry>;

  RelayOp insert(Entry entry);
  bool finish(RelayOp op, End end);
  Entry take_out(Entries::iterator at);  // under the lock
  void deliver(RelayOp op, Entry entry, End end);

  const RelayOptions options_;
  const Ended ended_;
  mutable std::mutex mutex_;
  std::condition_variable quiet_;
  Entries entries_;
  std::set<std::pair<int64_t, uint64_t>> due_;     // when, which op
  std::unordered_map<RelayOp, std::size_t> held_;  // ended puts that a reader still holds
  std::size_t held_bytes_ = 0;                     // of open puts and of held_
  int64_t puts_ = 0;                               // open ones
  int callbacks_ = 0;
  uint64_t next_op_ = 1;
  bool closed_ = false;
  std::atomic<uint64_t> bad_frames_{0};
  std::shared_ptr<std::atomic<int64_t>> lent_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace millrace
