// Notices: what a stage loop reports to the coordinator besides its outputs: failures, complete inputs, acknowledged
// aborts, replies to admin commands. Those that are refused for now wait, in order, at most kMaxNotices; over that the
// oldest are lost and counted: the coordinator asks again, or its deadline ends the request.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <deque>
#include <string>
#include <variant>

#include "stages/loop/context.h"
#include "stages/loop/outgoing.h"

namespace millrace::loop {

class Notices {
 public:
  Notices(LoopContext& context, Outgoing& outgoing) : context_(context), outgoing_(outgoing) {}

  // Ignored while the loop is no member: the coordinator has ended the requests of a lost lease itself.
  void add(wire::Chunk chunk) { add_any(std::move(chunk)); }  // goes into the coordinator's batch
  void add(wire::Message message) { add_any(std::move(message)); }
  // The one reply to an admin command.
  void reply(uint64_t command, const Result<std::string>& text, wire::WeightsReply weights = {});
  void flush();
  void clear() { waiting_.clear(); }
  bool empty() const { return waiting_.empty(); }
  std::size_t size() const { return waiting_.size(); }

 private:
  using Notice = std::variant<wire::Chunk, wire::Message>;
  void add_any(Notice notice);

  LoopContext& context_;
  Outgoing& outgoing_;
  std::deque<Notice> waiting_;
};

}  // namespace millrace::loop
