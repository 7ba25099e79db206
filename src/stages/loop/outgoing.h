// Outgoing: what a stage loop sends to other stages and to the coordinator, collected to one ChunkBatch and one
// AckBatch for each receiver and step.
//
// append() and acknowledge() add to the receiver's open batch; flush() sends all of them, and a full batch is sent by
// the next append. A batch that its outbox refuses for now is held: until it has left,
// nothing more is appended for that receiver, so that what follows stays in the queues of its requests, which their
// windows and limits bound. A batch that can never be sent is sent chunk by chunk, so that one bad chunk costs its own
// request alone.
//
// What became of appended chunks is reported by take_results(), which the loop reads where it may fail requests: never
// from inside append() or flush().
//
// Invariants: an open batch has at most wire::kMaxBatchEntries entries and kMaxBatchBytes, or is one larger chunk; the
// chunks of one receiver leave in the order in which they were appended.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stages/loop/context.h"

namespace millrace::loop {

class Outgoing {
 public:
  using Receiver = loop::Receiver;
  // Of chunks that were tried together.
  struct Sent {
    Receiver receiver;
    std::vector<ReqId> ids;  // one for each numbered chunk
    Status status;           // kUnavailable: they are held; another error: they are gone
  };
  explicit Outgoing(LoopContext& context) : context_(context) {}

  // OK: taken. kResourceExhausted, kUnavailable: the receiver's batch is held, for that reason; the chunk is untouched.
  Status append(const Receiver& receiver, wire::Chunk& chunk, std::size_t size_bytes);
  Status acknowledge(const Receiver& receiver, const wire::Ack& ack);
  // Why nothing can be appended for the receiver now; OK: something can.
  Status held(const Receiver& receiver) const;

  void flush();  // what is open and not held
  void retry();  // what is held
  std::vector<Sent> take_results() { return std::exchange(results_, {}); }

  // The numbered chunks of a request that has ended.
  void drop(ReqId id);
  // Everything to receivers for which `gone` holds.
  void drop_if(const std::function<bool(const Receiver&)>& gone);
  void clear();

  std::size_t chunks() const { return chunks_; }  // appended and not sent
  bool any_open() const;                          // something that flush() would try
  bool any_held() const;

 private:
  struct Batches {
    wire::Message chunks = wire::ChunkBatch{};
    std::size_t size_bytes = 0;
    wire::Message acks = wire::AckBatch{};
    Status refusal;  // not OK: held
  };

  static std::vector<wire::Chunk>& chunks_of(Batches& batches) {
    return std::get<wire::ChunkBatch>(batches.chunks).chunks;
  }
  static std::vector<wire::Ack>& acks_of(Batches& batches) { return std::get<wire::AckBatch>(batches.acks).acks; }
  static bool is_full_for(const Batches& batches, std::size_t size_bytes);
  void send(const Receiver& receiver, Batches& batches);
  void send_chunks(const Receiver& receiver, Batches& batches);
  void send_one_by_one(const Receiver& receiver, Batches& batches);

  LoopContext& context_;
  std::map<Receiver, Batches> open_;  // one for each receiver that was sent something and is not gone
  std::vector<Sent> results_;
  std::size_t chunks_ = 0;
};

}  // namespace millrace::loop
