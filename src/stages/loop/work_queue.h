// WorkQueue: the way of events from a stage loop to its worker's host, in order for each request. What the host
// refuses for now waits in the request's own queue, and its request in one line with the others; chunks of a congested
// request wait too, so that its senders do.
//
// Whatever has to wait is copied out of its relay (loop/detach.h): its senders get their credits back before it is
// taken, since they may need them for other requests.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <deque>
#include <string>

#include "stages/loop/context.h"
#include "stages/loop/detach.h"
#include "stages/loop/input_acks.h"
#include "stages/loop/request_table.h"

namespace millrace::loop {

inline constexpr std::size_t kMaxWaitingCommands = 16;

class WorkQueue {
 public:
  WorkQueue(LoopContext& context, RequestTable& requests, InputAcks& acks)
      : context_(context), requests_(requests), acks_(acks) {}

  // The id is the request's, and so is the traceparent of what begins it.
  void add(LoopRequest& request, WorkEvent event);
  // A delta for a request of which nothing waits goes straight to the host. False: it has to wait; it is untouched.
  bool add_now(LoopRequest& request, const std::string& from, InEdge& edge, Body& delta);
  // The worker has put out the result of the request, or it ends otherwise: what waits is not wanted, and the worker
  // gets drop() as its last call for this request, or nothing where it does not know the request.
  void finish(LoopRequest& request);
  void drop(LoopRequest& request);
  // It has taken the drop.
  void on_dropped(LoopRequest& request);
  // A chunk that comes after the result, which the worker does not want.
  static void skip(InEdge& edge) { ++edge.delivered; }
  // One that belongs to no request. It waits while the worker loads or is full, and then comes before requests that
  // wait. False: it is refused, kMaxWaitingCommands wait.
  bool add_command(wire::AdminRequest command);
  // The commands that wait are of no use: their coordinator has given them up.
  void lose_lease();
  // Everything that waits, in the order of waiting.
  void retry();
  std::size_t waiting_requests() const { return line_.size(); }

 private:
  void post_commands();
  void post_all(LoopRequest& request);
  void posted(LoopRequest& request);
  void chunk_posted(LoopRequest& request, const std::string& from, InEdge& edge);
  void copy_for_wait(WorkEvent& event);

  LoopContext& context_;
  RequestTable& requests_;
  InputAcks& acks_;
  DetachBudget detached_{kMaxDetachedBytes};
  std::deque<ReqId> line_;
  std::deque<WorkEvent> commands_;
};

}  // namespace millrace::loop
