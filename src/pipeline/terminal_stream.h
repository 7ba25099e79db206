// TerminalStream: what one terminal has sent of the answer to one request, and the client's sink has not taken yet:
// numbered chunks without a gap, then one result. A chunk that comes twice is ignored.
//
// Owner: the live request; Delivery alone uses it. Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/status.h"
#include "payload/value.h"
#include "stages/request_event.h"
#include "stages/stage_graph.h"
#include "wire/messages.h"

namespace millrace {

// Of a chunk that waits, for limits and windows.
std::size_t bytes_of(const wire::TextDelta& text);

struct QueuedChunk {
  uint64_t seq = 0;
  std::size_t bytes = 0;
  RequestEvent::Body body;
  bool is_complete = false;  // else its value has yet to be fetched
  bool borrowed = false;     // its bytes are a relay's
};

class TerminalStream {
 public:
  // Whether a message with this number is the next one: false for a repetition, an error for any other.
  Result<bool> accept(uint64_t seq, bool is_result);
  // Its terminal has sent so many by now; an error where fewer have come.
  Status check_sent(uint64_t count) const;
  // The accepted one, but for the value that has yet to be fetched.
  QueuedChunk& push(wire::Chunk& chunk);
  void set_result(Value result) { result_ = std::move(result); }
  // A value that came inside its message or was fetched (`borrowed`: its bytes are a relay's); nothing where the sink
  // has been given that chunk.
  void set_value(uint64_t seq, Value value, bool borrowed);
  // Copies what belongs to a relay: a client that does not read must not keep the credits of a stage's relay.
  void copy_borrowed();

  // The next one for the sink; null: it has not come, or has yet to be fetched.
  QueuedChunk* next() { return !queue_.empty() && queue_.front().is_complete ? &queue_.front() : nullptr; }
  void pop() {
    CHECK(next() != nullptr);
    queue_.pop_front();
  }
  // Of a settled stream.
  Value take_result() {
    CHECK(result_.has_value());
    return std::move(*result_);
  }

  // The result is announced: no chunk follows.
  bool has_ended() const { return result_seq_.has_value(); }
  // All of it is here; the stage is not needed any more.
  bool is_settled() const;

 private:
  uint64_t next_seq_ = 0;
  std::deque<QueuedChunk> queue_;
  std::optional<uint64_t> result_seq_;
  std::optional<Value> result_;
};

// The answer to one request.
struct AnswerStreams {
  std::map<std::size_t, TerminalStream> streams;  // by stage: its terminals
  StageSet open = 0;                              // the terminals that are not settled
  std::optional<RequestState> over;               // its end, which the coordinator has yet to take (Delivery)
  std::size_t queued_chunks = 0;
  std::size_t queued_bytes = 0;
};

}  // namespace millrace
