// RelayCalls: the puts and gets of a stage loop that are open, and the way of their ends back to the loop's thread.
//
// A relay calls `done` on whatever thread it likes, perhaps before put() has returned; here that becomes an entry in a
// list that the loop collects, and a wake. Each call that was made is collected exactly once. The list holds at most
// what is open, which the relays' credits and the loop's own limits bound.
//
// Owner: a StageLoop, or RelayPayloads under its lock. Thread safety: the owner's thread. The list is shared with the
// relays, which may outlive this.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "relay/relay.h"
#include "wire/pipeline_messages.h"

namespace millrace::loop {

// What a call was for.
struct CallPurpose {
  enum class Kind : uint8_t { kPut, kGetPayload, kGetChunk, kDrain };
  Kind kind = Kind::kPut;
  ReqId request;
  std::string edge;                              // the stage at the other end; of a put to the client: empty
  uint64_t seq = 0;                              // of the chunk on that edge
  std::shared_ptr<const wire::Payload> payload;  // of a get: what the bytes are put together by
};

struct CallEnd {
  CallPurpose purpose;
  Status status;
  std::vector<SharedBytes> parts;  // of a get
};

class RelayCalls {
 public:
  explicit RelayCalls(std::function<void()> wake);
  ~RelayCalls();

  // Both: the errors of the relay; then nothing is open and nothing will be collected.
  Result<std::string> put(Relay& relay, PutRequest request, CallPurpose purpose);
  Status get(Relay& relay, GetRequest request, CallPurpose purpose);
  // put() in three steps, for an owner that guards this object with a lock and keeps the copy out of it: begin_put(),
  // relay.put() of that request without the lock, then end_put(). In between a cancel() does not reach it.
  uint64_t begin_put(Relay& relay, PutRequest& request, CallPurpose purpose);
  Result<std::string> end_put(uint64_t serial, Result<PutTicket> put);

  void collect(std::vector<CallEnd>& out);
  // All that is open for a request; the ends are collected as of any other.
  void cancel(ReqId request);

  // Something of the request is open, besides drains.
  bool is_open(ReqId request) const;
  std::size_t open_puts() const { return puts_; }
  std::size_t open_gets() const { return open_.size() - puts_; }

 private:
  struct Done {
    uint64_t serial = 0;
    Status status;
    std::vector<SharedBytes> parts;
  };
  struct Shared {
    std::mutex mutex;
    std::vector<Done> done;
    std::function<void()> wake;  // empty after the loop's end
    void add(Done end);
  };
  struct Open {
    CallPurpose purpose;
    Relay* relay = nullptr;
    std::optional<RelayOp> op;  // none: the put is being made
    std::size_t put_bytes = 0;
  };
  using OpenIt = std::map<uint64_t, Open>::iterator;
  CallPurpose close(OpenIt open);

  std::shared_ptr<Shared> shared_;
  std::map<uint64_t, Open> open_;
  std::multimap<ReqId, uint64_t> of_request_;
  std::size_t puts_ = 0;
  uint64_t next_serial_ = 0;
};

}  // namespace millrace::loop
