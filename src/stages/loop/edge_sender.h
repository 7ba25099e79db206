// EdgeSender: the edges out of a stage: one queue for each request and receiver, from which chunks go into the
// receiver's batch (loop/outgoing.h). What a relay or an outbox refuses for now stays at the head of its queue and is
// tried again every kRetryMs; no other queue waits for it. A chunk goes into its batch as soon as put() has returned
// its descriptor, before the put is over: credits come back only when the receiver has read.
//
// At most wire::kMaxUnackedChunks chunks of an edge are unacknowledged, and kMaxUnackedClientBytes of one to the
// client. From kCongestedChunks that wait on, the request is congested: it gets no further chunks, and the worker is
// asked to let it rest; over kMaxWaitingChunks or kMaxWaitingBytes it fails.
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

#include "stages/loop/context.h"
#include "stages/loop/outgoing.h"
#include "stages/loop/relay_calls.h"
#include "stages/loop/request_table.h"

namespace millrace::loop {

class EdgeSender {
 public:
  EdgeSender(LoopContext& context, RequestTable& requests, Outgoing& outgoing, RelayCalls& calls)
      : context_(context), requests_(requests), outgoing_(outgoing), calls_(calls) {}

  void add(LoopRequest& request, const std::string& target, OutItem item);
  // A delta for an edge on which nothing waits goes straight into the batch. False: it has to wait; it is untouched.
  bool add_now(LoopRequest& request, const std::string& target, Body& delta);
  void on_ack(const wire::Origin& from, const wire::Ack& ack);
  // A put of a live request, as RelayCalls has collected it.
  void put_ended(LoopRequest& request, const CallEnd& end);

  // Sends the batches of this step. False: there is something for one more call.
  bool flush();
  // Everything that was refused, in the order of waiting.
  void retry_batches();
  void retry_edges();

  // The request is ending: nothing of it is sent any more, but receivers in the middle of a stream get the failure.
  void drop(LoopRequest& request);
  void report_failure(LoopRequest& request, const Status& why);
  // A receiver that is lost to this request; empty: none.
  std::string lost_receiver(const LoopRequest& request) const;
  std::size_t waiting_edges() const { return waiting_edges_.size(); }

 private:
  void pump(LoopRequest& request, OutEdge& edge);
  Status send_head(LoopRequest& request, OutEdge& edge);
  Status later(OutEdge& edge, const Status& refusal);
  Status absent(OutEdge& edge, const std::string& what);
  Result<const wire::Peer*> receiver(const LoopRequest& request, OutEdge& edge);
  Result<wire::RouteHop> hop_to(const LoopRequest& request, const std::string& target) const;
  Status prepare(LoopRequest& request, OutEdge& edge, OutItem& item, const wire::Peer& to);
  Status put(LoopRequest& request, const OutEdge& edge, const OutItem& item, const wire::Peer& to,
             wire::Payload& payload);
  void head_sent(LoopRequest& request, OutEdge& edge);
  void count_sent(OutEdge& edge, std::size_t size_bytes);
  Status check_waiting(const LoopRequest& request) const;
  void update_congestion(LoopRequest& request);
  void take_results();
  void on_result(const Outgoing::Sent& batch, LoopRequest& request, OutEdge& edge);

  LoopContext& context_;
  RequestTable& requests_;
  Outgoing& outgoing_;
  RelayCalls& calls_;
  std::deque<std::pair<ReqId, std::string>> waiting_edges_;  // entries of requests that have ended are skipped
};

}  // namespace millrace::loop
