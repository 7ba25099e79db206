// InputAcks: acknowledgements of what a stage loop has taken from its senders, which keep a window of
// wire::kMaxUnackedChunks. An acknowledgement is a count from the start of an edge, so one that is lost or refused is
// made good by the next. A sender whose window is full sends no chunk that would cause a next one: so the last one is
// repeated to senders that are silent, after kAckRepeatMs and then at about doubled intervals. The sender answers with
// the count of what it has sent, which shows whether chunks were lost with a connection; one that has ended the request
// here answers with a failure (answer_repeated()).
//
// The end of a stream and a result are acknowledged at once, other chunks every wire::kAckEveryChunks, and what is left
// after kAckIdleMs: its sender may hold a lease on it.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "stages/loop/context.h"
#include "stages/loop/notices.h"
#include "stages/loop/outgoing.h"
#include "stages/loop/request_table.h"

namespace millrace::loop {

class InputAcks {
 public:
  InputAcks(LoopContext& context, const RequestTable& requests, Outgoing& outgoing, Notices& notices)
      : context_(context), requests_(requests), outgoing_(outgoing), notices_(notices) {}

  // A chunk has come: should its sender fall silent, it is asked, even where nothing is taken for long.
  void schedule_sweep() { sweep_ms_ = std::min(sweep_ms_, context_.now_ms + kAckRepeatMs); }
  void acknowledge_if_due(ReqId id, const std::string& from, InEdge& edge);
  void acknowledge_all(LoopRequest& request);
  // Of a request that is not here any more.
  void acknowledge_ended(ReqId id, const wire::Origin& from, uint64_t count);
  // As a sender: what has been sent to a receiver that asks, by a repeated acknowledgement.
  void answer_repeated(const wire::Origin& receiver, const wire::Ack& ack);
  // As a receiver: an error where fewer chunks have come than were sent.
  static Status check_sent(const LoopRequest& request, const wire::Origin& from, uint64_t count);
  // What is due by now.
  void tick();
  int64_t due_ms() const { return std::min(next_ms_, sweep_ms_); }

 private:
  void acknowledge(ReqId id, const std::string& from, InEdge& edge, bool repeated = false);
  std::optional<wire::ChunkBody> answer_to(const wire::Origin& receiver, const wire::Ack& ack) const;
  void repeat_if_silent(ReqId id, const std::string& from, InEdge& edge);

  LoopContext& context_;
  const RequestTable& requests_;
  Outgoing& outgoing_;
  Notices& notices_;
  int64_t next_ms_ = kNoWake;
  int64_t sweep_ms_ = kNoWake;  // when silent senders are looked for
};

}  // namespace millrace::loop
