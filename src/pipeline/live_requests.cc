#include "pipeline/live_requests.h"

#include <algorithm>

#include "base/trace.h"
#include "pipeline/session_ids.h"

namespace millrace {

LiveRequests::LiveRequests(uint64_t session, int max_requests)
    : max_requests_(static_cast<std::size_t>(max_requests)), next_id_(first_id(session)) {
  CHECK(max_requests >= 1);
}

ReqId LiveRequests::new_id() {
  ++submitted_;
  return ReqId{next_id_++};
}

Status LiveRequests::check_capacity() const {
  if (requests_.size() < max_requests_) return ok_status();
  return error(StatusCode::kResourceExhausted, "{} requests are live, the limit; try again later", requests_.size());
}

LiveRequest& LiveRequests::add(std::unique_ptr<LiveRequest> request) {
  LiveRequest& live = *request;
  trace::async_begin("request", "coordinator", live.id.value);
  deadlines_.emplace(live.deadline_ms, live.id);
  CHECK(requests_.emplace(live.id, std::move(request)).second);
  return live;
}

void LiveRequests::refuse(ReqId id, const RequestSink& sink, const Status& status) {
  ++refused_;
  RequestEvent event{.id = id, .body = RequestEvent::End{.status = status}};
  sink(event);
}

LiveRequest* LiveRequests::find(ReqId id) const {
  const auto found = requests_.find(id);
  return found == requests_.end() ? nullptr : found->second.get();
}

std::unique_ptr<LiveRequest> LiveRequests::end(ReqId id, RequestState state) {
  CHECK(state >= RequestState::kCompleted);
  const auto found = requests_.find(id);
  if (found == requests_.end()) return nullptr;
  // Out of the table before anything else: an end that its clean-up causes finds nothing, so each request ends once.
  std::unique_ptr<LiveRequest> request = std::move(found->second);
  trace::async_end("request", "coordinator", id.value);
  requests_.erase(found);
  CHECK(deadlines_.erase({request->deadline_ms, id}) == 1);  // overdue() finds each of them
  unsent_.erase(id);
  if (request->state == RequestState::kRunning) {
    CHECK(running_ > 0);
    --running_;
  }
  ++(state == RequestState::kCompleted ? completed_ : state == RequestState::kFailed ? failed_ : aborted_);
  return request;
}

const LiveRequest* LiveRequests::overdue(int64_t now_ms) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now_ms) return nullptr;
  return find(deadlines_.begin()->second);
}

std::vector<ReqId> LiveRequests::select(const std::function<bool(const LiveRequest&)>& which) const {
  std::vector<ReqId> ids;
  for (const auto& [id, request] : requests_) {
    if (which(*request)) ids.push_back(id);
  }
  // The map has no sequence: sorted, so that a loss ends requests in the same sequence on every run.
  std::sort(ids.begin(), ids.end());
  return ids;
}

void LiveRequests::set_running(LiveRequest& request) {
  CHECK(request.state == RequestState::kPending);
  unsent_.erase(request.id);
  // The inputs were sent, and may be large.
  request.submit = wire::Submit{};
  request.state = RequestState::kRunning;
  ++running_;
}

void LiveRequests::add_to(CoordinatorBooks& books) const {
  books.live = requests_.size();
  books.pending = unsent_.size();
  books.running = running_;
  books.submitted = submitted_;
  books.refused = refused_;
  books.completed = completed_;
  books.failed = failed_;
  books.aborted = aborted_;
}

}  // namespace millrace
