// FanIn: from payloads to the start of the work. Payloads of `wait_for` are kept until those that the rule names are
// here, then merged; without `wait_for` one payload starts the work, and a second one is an error of the request.
//
// What waits for other payloads is copied out of its relay (loop/detach.h): theirs may need the same credits.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <string>

#include "stages/loop/edge_sender.h"
#include "stages/loop/input_streams.h"
#include "stages/loop/rules.h"

namespace millrace::loop {

class FanIn {
 public:
  FanIn(LoopContext& context, const LoopRules& rules, InputStreams& streams, Fetches& fetches, EdgeSender& sender,
        WorkQueue& work)
      : context_(context), rules_(rules), streams_(streams), fetches_(fetches), sender_(sender), work_(work) {}

  // All of a live request. What was submitted to the entry stage.
  Status on_submit(LoopRequest& request, wire::Payload payload);
  // A prompt that is tokenized already, which is no value that a rule could look at: the work starts at once.
  Status on_submit(LoopRequest& request, wire::TokenizedRequest generate);
  // The result of a stage before this one.
  Status on_result(LoopRequest& request, const wire::Origin& from, const wire::Chunk& chunk, wire::Payload payload);
  Status fetch(LoopRequest& request, CallPurpose purpose, wire::Payload payload);
  // The bytes of one of these.
  Status arrived(LoopRequest& request, const std::string& from, Value value);
  // The request ends: what it has is not wanted.
  static void drop(LoopRequest& request) { request.in.payloads.clear(); }

 private:
  Status check(const LoopRequest& request, const InEdge& edge, const std::string& from) const;
  Status set_expected(LoopRequest& request, const std::string& from, const Value& value);
  static Status check_source(const LoopRequest& request, const std::string& from);
  Status merge_if_complete(LoopRequest& request);
  Status start(LoopRequest& request, Value payload);

  LoopContext& context_;
  const LoopRules& rules_;
  InputStreams& streams_;
  Fetches& fetches_;
  EdgeSender& sender_;
  WorkQueue& work_;
};

}  // namespace millrace::loop
