// EdgeSender: the edges out of a stage: one queue for each request and receiver, from which chunks go into the
// receiver's batch (loop/outgoing.h). What a relay or an outbox refuses for now stays at the head of its queue and is
// tried again every kRetryMs; no other queue waits for it. A chunk goes into its batch as soon as put() has returned
// its descriptor, before the put is over: credits come back only when the receiver has read.
//
// At most wire::kMaxUnackedChunks chunks of an edge are unacknowledged, and kMaxUnackedClientBytes of one to the
// client. From kCongestedChunks that wait on, or kCongestedClientBytes for the client, the request is congested: it
// gets no further chunks, and the worker is asked to let it rest; over kMaxWaitingChunks or kMaxWaitingBytes it fails.
//
// The request's route names the receiver, the same for all senders. A replica that is down, or back as another
// incarnation, fails the requests that are bound to it; one that the table of peers does not have yet is waited for,
// kPeerWaitMs at most.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "stages/loop/context.h"
#include "stages/loop/outgoing.h"
#include "stages/loop/relay_calls.h"
#include "stages/loop/request_table.h"

namespace millrace::loop {

class EdgeSender {
 public:
  EdgeSender(LoopContext& context, RequestTable& requests, Outgoing& outgoing, RelayCalls& calls)
      : context_(context), requests_(requests), outgoing_(outgoing), calls_(calls) {}

  // Which of stream_to the request streams to.
  void set_targets(LoopRequest& request, std::vector<std::string> targets);
  // Of a live request, as all that returns a Status.
  Status add(LoopRequest& request, const std::string& target, OutItem item);
  // A delta for an edge on which nothing waits goes straight into the batch. False: it has to wait; it is untouched.
  bool append(LoopRequest& request, const std::string& target, Body& delta);
  Status on_ack(LoopRequest& request, const wire::Origin& from, const wire::Ack& ack);
  // A put, as RelayCalls has collected it.
  Status put_ended(const LoopRequest& request, const CallEnd& end);
  // What became of a chunk of the request in this batch.
  Status on_sent(const Outgoing::Sent& batch, LoopRequest& request);

  // Edges that were refused, in the order of waiting; each that is of a live request is to be tried again.
  using Waiting = std::deque<std::pair<ReqId, std::string>>;
  Waiting take_waiting() { return std::exchange(waiting_edges_, {}); }
  Status retry(LoopRequest& request, const std::string& target);

  // The request is ending: nothing of it is sent any more, but receivers in the middle of a stream get the failure.
  void drop(LoopRequest& request);
  void report_failure(LoopRequest& request, const Status& why);
  // A receiver that is lost to this request; empty: none.
  std::string lost_receiver(const LoopRequest& request) const;
  std::size_t waiting_edges() const { return waiting_edges_.size(); }

 private:
  Status pump(LoopRequest& request, OutEdge& edge);
  Status send_head(LoopRequest& request, OutEdge& edge);
  Status later(OutEdge& edge, const Status& refusal);
  Status absent(OutEdge& edge, const std::string& what);
  Result<const wire::Peer*> receiver(const LoopRequest& request, OutEdge& edge);
  Result<wire::RouteHop> hop_to(const LoopRequest& request, const std::string& target) const;
  Status prepare(LoopRequest& request, OutEdge& edge, OutItem& item, const wire::Peer& to);
  Status put(const LoopRequest& request, const OutEdge& edge, const OutItem& item, const wire::Peer& to,
             wire::Payload& payload);
  void head_sent(LoopRequest& request, OutEdge& edge);
  void count_sent(OutEdge& edge, std::size_t size_bytes);
  Status check_waiting(const LoopRequest& request) const;
  void update_congestion(LoopRequest& request);

  LoopContext& context_;
  RequestTable& requests_;
  Outgoing& outgoing_;
  RelayCalls& calls_;
  Waiting waiting_edges_;  // entries of requests that have ended are skipped
};

}  // namespace millrace::loop
