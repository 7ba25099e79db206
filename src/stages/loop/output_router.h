// OutputRouter: to which edges an output of the worker goes, by the spec, the rules and the request's route.
//
// An untargeted chunk goes to those of stream_to that `stream_done_to` names for the request's payload (all, without
// that rule); a terminal without stream_to streams to the client, and only a terminal does. On each edge chunks leave
// in the order of the worker's outputs: stream, end, result. A target from which none of the request's terminals can be
// reached gets nothing of it, whatever the rules name.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <string>

#include "stages/loop/edge_sender.h"
#include "stages/loop/input_streams.h"
#include "stages/loop/rules.h"

namespace millrace::loop {

class OutputRouter {
 public:
  OutputRouter(LoopContext& context, const LoopRules& rules, EdgeSender& sender, WorkQueue& work, InputStreams& streams,
               RequestTable& requests)
      : context_(context), rules_(rules), sender_(sender), work_(work), streams_(streams), requests_(requests) {}

  // Both ignore outputs of a request that has ended or has its result, except for kDropped. An error: why the request
  // has to end.
  // Sends a chunk where it goes.
  Status route(LoopRequest& request, WorkOutput& output);
  // All else: a result, which is sent; a failure; or kDropped, which is always taken: the worker has released the
  // request.
  Status end(LoopRequest& request, const WorkOutput& output);

 private:
  Status send_to_stages(LoopRequest& request, const WorkOutput& output, const OutItem& item);
  Status send_results(LoopRequest& request, const Value& result);
  Status send_result(LoopRequest& request, const std::string& target, Result<Lifted> lifted);
  const std::string* only_target(const LoopRequest& request, bool to_client) const;
  bool is_wanted(const LoopRequest& request, const std::string& target) const;
  const std::vector<std::string>& stream_targets(const LoopRequest& request) const;

  LoopContext& context_;
  const LoopRules& rules_;
  EdgeSender& sender_;
  WorkQueue& work_;
  InputStreams& streams_;
  RequestTable& requests_;
};

}  // namespace millrace::loop
