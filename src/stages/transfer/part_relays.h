// PartWriter, PartReader: the bytes of the parts of transfers through relays, by reference in one process, in shared
// memory on one host, over TCP or UCX between hosts. A part names the relay and has its descriptor; where no relay
// reaches the reader, it has the bytes itself.
//
// Relays know requests, so each transfer has a number of its own here.
//
// Owner: TransferService. Thread safety: the owner's thread; `wake` is called on any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stages/loop/relay_calls.h"
#include "stages/loop/relay_choice.h"
#include "stages/transfer/transfer_env.h"
#include "wire/transfer_messages.h"

namespace millrace::transfer {

class TransferNumbers {
 public:
  ReqId of(const TransferId& id) { return numbers_.try_emplace(id, ReqId{numbers_next_++}).first->second; }
  // No number: nothing was ever open for it.
  std::optional<ReqId> take(const TransferId& id) {
    const auto found = numbers_.extract(id);
    return found.empty() ? std::nullopt : std::optional(found.mapped());
  }

 private:
  std::map<TransferId, ReqId> numbers_;
  uint64_t numbers_next_ = 1;
};

class PartWriter {
 public:
  // `self`: this process, as readers know it; `wanted`: the backend that the pipeline asks for, or "auto".
  PartWriter(wire::Peer self, loop::Relays relays, std::string wanted);

  // The bytes of `part`, for the server that reads it. kResourceExhausted: later, the relay has no capacity now.
  Status offer(const wire::Peer& reader, SharedBytes bytes, wire::KvPart& part);
  // What is not read yet, and will not be.
  void drop(const TransferId& id);
  // Ends of offers; their parts' bytes are free.
  void collect();

 private:
  void note_messages(const wire::Peer& reader, const Status& why);

  const wire::Peer self_;
  const loop::Relays relays_;
  const std::string wanted_;
  TransferNumbers numbers_;
  loop::RelayCalls calls_;
  std::set<std::tuple<std::string, uint32_t, uint64_t>> noted_;  // readers that no relay reaches, at most kMaxEndpoints
};

class PartReader {
 public:
  PartReader(loop::Relays relays, std::function<void()> wake);

  // Of a part that names a relay, `size_bytes` in all; take_fetched() has the ticket. kUnavailable: there is no such
  // relay here; kResourceExhausted: it has no capacity.
  Result<uint64_t> fetch(const wire::KvPart& part, std::size_t size_bytes);
  void drop(const TransferId& id);
  std::vector<TransferEnv::Fetched> take_fetched();

 private:
  const loop::Relays relays_;
  TransferNumbers numbers_;
  loop::RelayCalls calls_;
  std::map<uint64_t, TransferId> open_;  // by ticket
  uint64_t next_ticket_ = 1;
};

}  // namespace millrace::transfer
