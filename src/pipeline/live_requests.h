// LiveRequests: every live request of a pipeline, under an id that is given once. A request leaves the table through
// end(), which succeeds once for each: this is where "one request, one end" is kept.
//
// States: pending (its Submit has not left for the entry stage) -> running -> completed | failed | aborted. An ended
// request is not in the table; its id stays unknown for good. Ids of another session begin at another number, because a
// stage that outlived the last coordinator still remembers the ids of that one.
//
// Owner: the coordinator. Thread safety: none. Pointers and references are valid until the request's end().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pipeline/placement.h"
#include "pipeline/request_events.h"
#include "pipeline/terminal_stream.h"
#include "stages/stage_graph.h"

namespace millrace {

struct LiveRequest {
  ReqId id;
  RequestSink sink;
  RequestState state = RequestState::kPending;
  wire::Message submit;  // while pending
  int64_t timeout_ms = 0;
  int64_t deadline_ms = 0;
  int64_t last_seen_ms = 0;  // when it began to run, something of it came, or its stages reported work on it
  std::string traceparent;   // "": it is not traced
  Placement::Route route;
  int64_t hinted_tokens = 0;  // counted in the loads of its replicas
  StageSet terminals = 0;
  std::size_t entry = 0;                  // the stage that gets the Submit
  std::vector<StageSet> complete_inputs;  // by stage: the sources from which it has everything
  AnswerStreams answer;
};

class LiveRequests {
 public:
  LiveRequests(uint64_t session, int max_requests);

  ReqId new_id();
  // kResourceExhausted: as many requests as may be live are.
  Status check_capacity() const;
  LiveRequest& add(std::unique_ptr<LiveRequest> request);
  // Reports the end of a request that never was in the table.
  void refuse(ReqId id, const RequestSink& sink, const Status& status);
  // Null: unknown or ended.
  LiveRequest* find(ReqId id) const;
  // Takes the request out, with the state that it ended in; null: unknown or ended already.
  std::unique_ptr<LiveRequest> end(ReqId id, RequestState state);

  // The request whose deadline passed first; null: none.
  const LiveRequest* overdue(int64_t now_ms) const;
  // The ids of those that `which` selects, ascending.
  std::vector<ReqId> select(const std::function<bool(const LiveRequest&)>& which) const;

  // Pending requests that have a route and a Submit, which waits for its entry stage.
  void queue(const LiveRequest& request) { unsent_.insert(request.id); }
  void set_running(LiveRequest& request);
  std::size_t running() const { return running_; }
  bool is_queued(ReqId id) const { return unsent_.contains(id); }
  std::vector<ReqId> queued() const { return {unsent_.begin(), unsent_.end()}; }

  std::size_t max_requests() const { return max_requests_; }
  void add_to(CoordinatorBooks& books) const;

 private:
  const std::size_t max_requests_;
  uint64_t next_id_;
  std::unordered_map<ReqId, std::unique_ptr<LiveRequest>> requests_;
  std::set<std::pair<int64_t, ReqId>> deadlines_;
  std::set<ReqId> unsent_;
  std::size_t running_ = 0;
  uint64_t submitted_ = 0, refused_ = 0, completed_ = 0, failed_ = 0, aborted_ = 0;
};

}  // namespace millrace
