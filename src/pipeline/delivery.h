// Delivery: brings what the terminals send to the sinks of the requests. Payloads that came through relays are fetched
// aside; a sink gets the chunks of each terminal in their order, then one result. Text for a request of which nothing
// waits passes to its sink at once.
//
// A sink that cannot take more answers kFull and gets the same chunk again with the next tick, or when its client is
// ready. The terminals keep a window of what is under way (client_window.h). What waits here is bounded all the same:
// over the limits its request, and no other, fails with kResourceExhausted.
//
// Delivery ends no request: it reports which ones are over, completed, or failed by a stage, by a fetch or over a
// limit. After each call that is given the time, the coordinator takes that list and ends them; until then nothing more
// of them is delivered.
//
// Owner: the coordinator. Thread safety: none, but for the data plane, see payload_fetches.h.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/aborts.h"
#include "pipeline/client_window.h"
#include "pipeline/live_requests.h"
#include "pipeline/payload_fetches.h"
#include "pipeline/spec.h"
#include "stages/stage_graph.h"

namespace millrace {

// Of one request, that wait for its sink.
struct DeliveryLimits {
  std::size_t max_chunks = 1024;
  std::size_t max_bytes = 64u << 20;
};

class Delivery {
 public:
  struct Ended {
    ReqId id;
    RequestEvent::End how;
  };

  // All references must outlive it.
  Delivery(const PipelineSpec& spec, const StageGraph& graph, LiveRequests& requests, const Aborts& aborts,
           Payloads& payloads, DeliveryLimits limits, ClientWindow::Send acknowledge);

  // It has left for its entry stage.
  void begin(const LiveRequest& request, int64_t now_ms);
  // What a replica of `stage` sends in one step.
  void handle(std::size_t stage, std::size_t slot, wire::ChunkBatch& batch, int64_t now_ms);
  // The client can take more.
  void on_client_ready(ReqId id, int64_t now_ms);
  void on_lost(std::size_t slot) { window_.on_lost(slot); }
  // The request has ended.
  void erase(const LiveRequest& request);

  void take_arrivals(int64_t now_ms);
  void tick(int64_t now_ms);
  // What is over since the last call, in the order in which it ended.
  std::vector<Ended> take_ended() { return std::exchange(ended_, {}); }
  // At the end of each step.
  void send_acks() { window_.send(); }

  void on_arrival(std::function<void()> wake) { fetches_.on_arrival(std::move(wake)); }
  void add_to(CoordinatorBooks& books) const;

 private:
  bool handle(std::size_t stage, std::size_t slot, wire::Chunk& chunk, int64_t now_ms);
  Status handle(LiveRequest& request, std::size_t stage, TerminalStream& stream, wire::Chunk& chunk, int64_t now_ms);
  bool deliver(LiveRequest& request, std::size_t stage, wire::Chunk& chunk, int64_t now_ms);
  LiveRequest* find_open(ReqId id);
  void discard_late(const wire::Chunk& chunk);
  void discard(ReqId id, const wire::Payload* payload);
  void on_fetched(PayloadFetches::Arrival& arrival, int64_t now_ms);
  void flush(ReqId id, int64_t now_ms);
  RequestEvent chunk_event(const LiveRequest& request, std::size_t stage, uint64_t seq) const;
  bool flush_stream(LiveRequest& request, std::size_t stage, TerminalStream& stream, int64_t now_ms);
  Status check_limits(const AnswerStreams& answer) const;
  void end(LiveRequest& request, RequestEvent::End how);
  void complete(LiveRequest& request);
  void fail(LiveRequest& request, std::size_t stage, const Status& status);

  const PipelineSpec& spec_;
  const StageGraph& graph_;
  LiveRequests& requests_;
  const Aborts& aborts_;
  const DeliveryLimits limits_;
  PayloadFetches fetches_;
  ClientWindow window_;
  std::vector<Ended> ended_;
  std::set<ReqId> blocked_;  // whose sink could not take more
  std::size_t queued_chunks_ = 0, queued_bytes_ = 0;
  uint64_t late_ = 0, repeated_ = 0, ignored_ = 0;
};

}  // namespace millrace
