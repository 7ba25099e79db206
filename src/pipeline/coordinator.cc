#include "pipeline/coordinator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/hash.h"
#include "base/log.h"
#include "base/trace.h"

namespace millrace {

namespace {

// One of 2^20 ranges of 2^32 ids. All are small enough to be exact in a double.
uint64_t first_id(uint64_t session) { return ((mix_bits(session) >> 44) << 32) + 1; }

}  // namespace

const char* request_state_name(RequestState state) {
  static constexpr const char* kNames[] = {"pending", "running", "completed", "failed", "aborted"};
  return kNames[static_cast<std::size_t>(state)];
}

Coordinator::Coordinator(const PipelineSpec& spec, const Library& library, CoordinatorOptions options,
                         CoordinatorDoors& doors, Payloads& payloads, int64_t now_ms)
    : spec_(spec),
      library_(library),
      options_(std::move(options)),
      doors_(doors),
      payloads_(payloads),
      graph_(spec.stages, spec.entry),
      members_(spec,
               {.session = options_.session,
                .spec_hash = options_.spec_hash != 0 ? options_.spec_hash : spec.hash(),
                .same_spec = options_.same_spec,
                .lease_ms = options_.lease_ms,
                .stall_grace_ms = options_.stall_grace_ms,
                .self = options_.self},
               now_ms),
      placement_(spec.stages),
      next_id_(first_id(options_.session)),
      max_requests_(options_.max_requests > 0 ? options_.max_requests : spec.max_requests),
      arrivals_(std::make_shared<Arrivals>()) {
  for (std::size_t i = 0; i < spec.stages.size(); ++i) {
    const StageSpec& stage = spec.stages[i];
    const auto replicas = static_cast<uint32_t>(stage.replicas);
    stages_.push_back({replicas, stage_of_seat_.size()});
    stage_of_seat_.insert(stage_of_seat_.end(), replicas, i);
  }
  outboxes_.resize(stage_of_seat_.size());
}

Coordinator::~Coordinator() = default;

LiveRequest* Coordinator::find(ReqId id) {
  const auto found = table_.find(id);
  return found == table_.end() ? nullptr : found->second.get();
}

// ---- the beginning

void Coordinator::refuse(ReqId id, const PipelineSink& sink, const Status& status) {
  ++counts_.refused;
  RequestEvent event{.kind = RequestEvent::Kind::kEnd, .id = id, .state = RequestState::kFailed, .status = status};
  sink(event);
}

ReqId Coordinator::submit(Value inputs, SubmitOptions options, PipelineSink sink, int64_t now_ms) {
  ++counts_.submitted;
  const ReqId id{next_id_++};
  const auto begin = [&]() -> Status {
    ASSIGN_OR_RETURN(const StageSet terminals, terminals_of(inputs, options));
    RETURN_IF_ERROR(may_submit(terminals));
    auto request = std::make_unique<LiveRequest>();
    request->id = id;
    const int64_t limit_ms = spec_.request_timeout_s * 1000;
    request->timeout_ms = options.timeout_ms > 0 ? std::min(options.timeout_ms, limit_ms) : limit_ms;
    request->deadline_ms = now_ms + request->timeout_ms;
    request->terminals = request->open = terminals;
    request->entry = graph_.entry();
    if (options.later && !options_.prompt_stage.empty()) request->entry = graph_.index_of(options_.prompt_stage);
    request->gathered.resize(stages_.size());
    request->route.assign(stages_.size(), Placement::kNone);
    if (!options.later) {
      if (Status status = choose_route(*request, inputs, std::nullopt, {}); !status.ok()) {
        payloads_.forget(id);
        placement_.end(request->route, request->hinted_tokens);
        return status;
      }
      unsent_.insert(id);
    }
    request->sink = sink;
    trace::async_begin("request", "coordinator", id.value);
    deadlines_.emplace(request->deadline_ms, id.value);
    table_.emplace(id, std::move(request));
    return ok_status();
  };
  if (Status status = begin(); !status.ok()) {
    refuse(id, sink, status);
  } else if (unsent_.contains(id)) {
    try_start(id, now_ms);
  }
  return id;
}

void Coordinator::begin(ReqId id, wire::TokenizedRequest request, const PlacementHint& hint, int64_t now_ms) {
  LiveRequest* live = find(id);
  if (live == nullptr || live->state != RequestState::kPending || unsent_.contains(id)) return;
  if (const std::string missing = who_is_missing(live->terminals); !missing.empty()) {
    return fail(id, Status(StatusCode::kUnavailable, "the pipeline is not ready: " + missing), now_ms);
  }
  if (Status status = may_route(hint); !status.ok()) return fail(id, status, now_ms);
  if (Status status = choose_route(*live, Value(), std::move(request), hint); !status.ok())
    return fail(id, status, now_ms);
  unsent_.insert(id);
  try_start(id, now_ms);
}

// A replica that the client asks for must be there: another one would not do.
Status Coordinator::may_route(const PlacementHint& hint) const {
  for (const StageSeats& stage : stages_) {
    if (!hint.replica || stage.replicas <= static_cast<uint32_t>(*hint.replica) || stage.replicas == 1) continue;
    const SeatView& seat = members_.seats()[stage.first_seat + static_cast<std::size_t>(*hint.replica)];
    if (!seat.up)
      return error(StatusCode::kUnavailable, "the {} is down: {}", seat.name, members_.why_not_serving(seat));
  }
  return ok_status();
}

// Chooses the replicas and makes the message to the entry stage.
Status Coordinator::choose_route(LiveRequest& request, const Value& inputs,
                                 std::optional<wire::TokenizedRequest> generate, const PlacementHint& hint) {
  wire::Submit submit{.id = request.id, .from = members_.self()};
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if ((request.terminals & stage_bit(stage)) == 0) continue;
    request.feeds[stage];
    submit.terminals.push_back(spec_.stages[stage].name);
  }
  const auto serves = [this](std::size_t stage, uint32_t replica) {
    return members_.seats()[stages_[stage].first_seat + replica].serves();
  };
  request.route = placement_.begin(graph_.may_need(request.terminals), serves, hint);
  request.hinted_tokens = hint.tokens;
  submit.route = hops(request.route);
  submit.generate = std::move(generate);
  const std::size_t entry = *seat_of(request.route, request.entry);
  ASSIGN_OR_RETURN(submit.payload, payloads_.give(request.id, inputs, members_.seats()[entry].peer));
  request.submit = std::move(submit);
  return ok_status();
}

// The entry stage is told, or it is tried again with the next tick.
void Coordinator::try_start(ReqId id, int64_t now_ms) {
  LiveRequest* request = find(id);
  if (request == nullptr || request->state != RequestState::kPending || !senders_know(*request)) return;
  std::get<wire::Submit>(request->submit).timeout_ms = request->deadline_ms - now_ms;
  const Status sent = send(*seat_of(request->route, request->entry), request->submit);
  if (sent.code() == StatusCode::kResourceExhausted || sent.code() == StatusCode::kUnavailable) return;
  if (!sent.ok()) return fail(id, sent, now_ms);
  unsent_.erase(id);
  request->submit = wire::Submit{};
  request->state = RequestState::kRunning;
  RequestEvent event{.kind = RequestEvent::Kind::kAccepted, .id = id};
  request->sink(event);
}

// ---- the end

// Every end of a live request comes through here; it happens once, because the table holds each once.
void Coordinator::end(ReqId id, RequestEvent event, bool tell, int64_t now_ms) {
  const auto found = table_.find(id);
  if (found == table_.end()) return;
  const std::unique_ptr<LiveRequest> request = std::move(found->second);
  trace::async_end("request", "coordinator", id.value);
  table_.erase(found);
  deadlines_.erase({request->deadline_ms, id.value});
  unsent_.erase(id);
  blocked_.erase(id);
  streaming_.erase(id);
  for (auto& [replica, counts] : acks_) counts.erase(id);
  counts_.queued_chunks -= request->queued_chunks;
  counts_.queued_bytes -= request->queued_bytes;
  payloads_.forget(id);
  placement_.end(request->route, request->hinted_tokens);
  if (event.state == RequestState::kCompleted) ++counts_.completed;
  if (event.state == RequestState::kFailed) ++counts_.failed;
  if (event.state == RequestState::kAborted) ++counts_.aborted;
  const bool stages_know = request->state == RequestState::kRunning;
  if (event.state != RequestState::kCompleted && stages_know) open_abort(id, request->route, now_ms);
  event.kind = RequestEvent::Kind::kEnd;
  event.id = id;
  if (tell) request->sink(event);
}

void Coordinator::fail(ReqId id, const Status& status, int64_t now_ms) {
  end(id, {.state = RequestState::kFailed, .status = status}, true, now_ms);
}

void Coordinator::cancel(ReqId id, int64_t now_ms) {
  end(id, {.state = RequestState::kAborted, .status = Status(StatusCode::kCancelled, "the request was aborted")}, true,
      now_ms);
}

void Coordinator::abort(ReqId id, int64_t now_ms) { end(id, {.state = RequestState::kAborted}, false, now_ms); }

void Coordinator::fail_all(const Status& status, int64_t now_ms) {
  std::vector<ReqId> ids;
  for (const auto& [id, request] : table_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (const ReqId id : ids) fail(id, status, now_ms);
  orders_.end_all(status);
}

void Coordinator::end_late(int64_t now_ms) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ms) {
    const ReqId id{deadlines_.begin()->second};
    const double seconds = static_cast<double>(find(id)->timeout_ms) / 1000;
    fail(id, error(StatusCode::kDeadline, "the request took more than {:g} s, the limit", seconds), now_ms);
  }
}

void Coordinator::admin(PipelineOrder order, AdminOrders::Done done, int64_t now_ms) {
  const auto send_to = [this](std::size_t seat, wire::Message& message) { return send(seat, message); };
  if (order.action == wire::AdminAction::kFlushCache) {
    done = [this, inner = std::move(done)](std::vector<wire::AdminReply> replies) {
      forget_flushed(replies);
      inner(std::move(replies));
    };
  }
  orders_.begin(std::move(order), members_, send_to, std::move(done), now_ms);
}

// A replica that has flushed its cache has nothing of the prompts that were routed there.
void Coordinator::forget_flushed(const std::vector<wire::AdminReply>& replies) {
  for (const wire::AdminReply& reply : replies) {
    for (std::size_t i = 0; reply.code == StatusCode::kOk && i < members_.seats().size(); ++i) {
      const SeatView& view = members_.seats()[i];
      if (view.name == reply.stage) placement_.forget(stage_of_seat_[i], view.replica);
    }
  }
}

// ---- the clock

void Coordinator::handle(wire::Message message, int64_t now_ms) {
  if (auto* batch = std::get_if<wire::ChunkBatch>(&message)) {
    on_batch(*batch, now_ms);
  } else if (auto* status = std::get_if<wire::StageStatus>(&message)) {
    members_.hear(*status, now_ms);
    was_ready_ = was_ready_ || why_not_ready().empty();
  } else if (auto* self = std::get_if<wire::Register>(&message)) {
    members_.hear(*self, now_ms);
  } else if (auto* ack = std::get_if<wire::AbortAck>(&message)) {
    hear(*ack);
  } else if (auto* reply = std::get_if<wire::AdminReply>(&message)) {
    if (!orders_.hear(*reply)) ++counts_.late;
  } else {
    ++counts_.unknown;
    LOG_WARNING("ignored a message of type {}: it is not for a coordinator", wire::message_type(message));
  }
  take_arrivals(now_ms);
  pump_members(now_ms);
  send_acks();
}

void Coordinator::tick(int64_t now_ms) {
  payloads_.tick(now_ms);
  take_arrivals(now_ms);
  members_.tick(now_ms);
  pump_members(now_ms);
  const std::vector<ReqId> unsent(unsent_.begin(), unsent_.end());
  for (const ReqId id : unsent) try_start(id, now_ms);
  const std::vector<ReqId> blocked(blocked_.begin(), blocked_.end());
  for (const ReqId id : blocked) flush(id, now_ms);
  acknowledge_due(now_ms);
  end_late(now_ms);
  retry_aborts(now_ms);
  orders_.tick(now_ms);
  take_arrivals(now_ms);
  send_acks();
}

}  // namespace millrace
