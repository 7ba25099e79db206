// RequestEnds: how a request leaves a stage loop, by exactly one of: its result sent on, one Failure to the
// coordinator, or an AbortAck. Whatever goes wrong with one request fails that request alone.
//
// An end takes time. From fail() or abort() on nothing of the request is sent, fetched or worked on; it stays in its
// ending phase until the worker has dropped it and its relay calls have ended, and only then is an abort acknowledged.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <string>

#include "stages/loop/edge_sender.h"
#include "stages/loop/fan_in.h"
#include "stages/loop/input_acks.h"
#include "stages/loop/notices.h"
#include "stages/loop/work_queue.h"

namespace millrace::loop {

class RequestEnds {
 public:
  RequestEnds(LoopContext& context, RequestTable& requests, RelayCalls& calls, FanIn& fan_in, InputStreams& streams,
              EdgeSender& sender, WorkQueue& work, InputAcks& acks, Notices& notices)
      : context_(context),
        requests_(requests),
        calls_(calls),
        fan_in_(fan_in),
        streams_(streams),
        sender_(sender),
        work_(work),
        acks_(acks),
        notices_(notices) {}

  // Ends the request with this error; nothing happens to one that is not live. The request stays valid until the step's
  // next sweep, in its ending phase.
  void fail(LoopRequest& request, Status why);
  void abort(ReqId id);
  // All of them, without a message: the lease that they belonged to is lost.
  void drop_all();
  void fail_all(const Status& why);
  // Those that the worker knows.
  void fail_worker_requests(const Status& why);
  // Those whose deadline is over, though the coordinator has not ended them.
  void fail_overdue();
  // Those that are bound to a replica that the table of peers has lost.
  void fail_of_lost_peers();
  // Erases those of which nothing is left.
  void sweep();

 private:
  void cancel(LoopRequest& request, const Status& why);
  bool is_over(const LoopRequest& request) const;
  void erase(LoopRequest& request);

  LoopContext& context_;
  RequestTable& requests_;
  RelayCalls& calls_;
  FanIn& fan_in_;
  InputStreams& streams_;
  EdgeSender& sender_;
  WorkQueue& work_;
  InputAcks& acks_;
  Notices& notices_;
};

}  // namespace millrace::loop
