// LostRequests: finds the requests on which no stage works any more, because a message was lost, so that they fail
// within seconds and not at their deadlines. Submit and chunks are sent once (docs/control-plane.md): where one is lost
// and a later one follows, its number shows the gap, but nothing follows a lost Submit, or the lost last chunk of a
// stage that is done.
//
// A request of which nothing has come for kQuietMs is asked about: every kRequestProbeMs all stages of its route report
// what they have of it. A message is lost if
//   - a stage has failed the request, which it reported; or
//   - no stage works on it: those that have something of it wait for others, which have nothing, or are done; or
//   - a stage has sent something of it to another one, which has got nothing from there, is not done, and has not
//     reported that it has everything from there (complete_inputs).
// Each may be true for a moment, while a message is on its way; a request is lost when kLostRounds rounds show it and
// nothing has come meanwhile. That is longer than a connection without a heartbeat lasts. A round in which a stage does
// not answer proves nothing; a stage that stays silent loses its lease, and its requests with that.
//
// Chunks that are lost behind others that arrived are found by the edge itself (stages/loop/input_acks.h).
//
// Not found, so that the deadline ends such a request: what a stage sent to one that works on the request already, when
// the sender has forgotten that it did so (loop::kTombstoneMs after it was done).
//
// Owner: the coordinator. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "pipeline/live_requests.h"
#include "stages/stage_graph.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int64_t kQuietMs = 2'000;
inline constexpr int64_t kRequestProbeMs = 1'000;
inline constexpr int kLostRounds = 5;

class LostRequests {
 public:
  using Send = std::function<void(std::size_t slot, wire::RequestProbe probe)>;  // may lose it: that round is void
  using Connected = std::function<bool(std::size_t slot)>;
  struct Lost {
    ReqId id;
    std::string why;
  };

  // All references must outlive it.
  LostRequests(const StageGraph& graph, LiveRequests& requests, Connected connected, Send send);

  void on_report(std::size_t slot, wire::RequestReport report);
  // Those that have to fail, ascending. Begins the next round when it is due.
  std::vector<Lost> tick(int64_t now_ms);

  uint64_t lost() const { return lost_; }

 private:
  using StageRequests = std::unordered_map<ReqId, wire::StageRequest>;
  // By stage of the graph; null: it has nothing of the request.
  using Row = std::vector<const wire::StageRequest*>;
  struct Suspicion {
    int rounds = 0;
    int64_t last_seen_ms = 0;  // of the request then: a chunk that has come since clears it
  };

  std::vector<Lost> end_round(int64_t now_ms);
  void begin_round(int64_t now_ms);
  bool is_quiet(const LiveRequest& request, int64_t now_ms) const;
  std::optional<Row> row_of(const LiveRequest& request) const;
  std::string why_lost(const LiveRequest& request, const Row& row) const;

  const StageGraph& graph_;
  LiveRequests& requests_;
  const Connected connected_;
  const Send send_;
  int64_t next_ms_ = 0;
  uint64_t round_ = 0;
  std::vector<ReqId> asked_;                         // in this round, kMaxProbedRequests at most
  std::map<std::size_t, StageRequests> reports_;     // of this round, by slot
  std::unordered_map<ReqId, Suspicion> suspicions_;  // of live requests alone
  uint64_t lost_ = 0;
};

}  // namespace millrace
