// The coordinator's requests: admission, start and end, and the step.
#include "pipeline/coordinator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace millrace {

Coordinator::Coordinator(const PipelineSpec& spec, const Library& library, CoordinatorOptions options,
                         CoordinatorEnv& env, Payloads& payloads, int64_t now_ms)
    : spec_(spec),
      library_(library),
      options_(std::move(options)),
      env_(env),
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
      outboxes_(env, members_),
      placement_(spec, graph_, members_),
      requests_(options_.session, options_.max_requests > 0 ? options_.max_requests : spec.max_requests),
      aborts_(requests_.max_requests() * kOpenAbortsPerRequest,
              [this](std::size_t slot, ReqId id) { outboxes_.send_once(slot, wire::AbortRequest{id}); }),
      lost_requests_(
          graph_, requests_, [this](std::size_t slot) { return outboxes_.is_connected(slot); },
          [this](std::size_t slot, wire::RequestProbe probe) {
            probe.from = members_.self();
            outboxes_.send_once(slot, std::move(probe));
          }),
      delivery_(spec, graph_, requests_, aborts_, payloads, options_.client_limits, ack_sender()),
      commands_(
          members_, [this](std::size_t slot, wire::Message& message) { return outboxes_.send(slot, message); },
          [this](std::size_t slot, const PipelineCommand& command, const wire::WeightsReply& weights) {
            if (command.action == wire::AdminAction::kSwitchWeights) {
              members_.set_weights(slot, command.weight_version, weights.checksum);
            }
            placement_.forget(slot);
          }) {}

// ---- admission

Result<StageSet> Coordinator::terminals_of(const Value& inputs, const SubmitOptions& options) const {
  std::vector<std::string> names = spec_.terminals();
  if (options.terminals) {
    names = *options.terminals;
  } else if (!spec_.terminals_rule.empty()) {
    const auto rule = library_.terminal_rules.find(spec_.terminals_rule);
    if (rule == library_.terminal_rules.end()) {
      return internal_error("there is no rule of terminals '{}'", spec_.terminals_rule);
    }
    ASSIGN_OR_RETURN(names, rule->second(inputs));
  }
  if (names.empty()) return invalid_argument("the request has no terminals; wanted at least one");
  StageSet terminals = 0;
  for (const std::string& name : names) {
    const std::size_t stage = graph_.index_of(name);
    if (stage == graph_.size() || !spec_.stages[stage].terminal) {
      return invalid_argument("'{}' is not a terminal of the pipeline; wanted some of: {}", name,
                              fmt::join(spec_.terminals(), ", "));
    }
    if ((terminals & stage_bit(stage)) != 0) return invalid_argument("terminal '{}' is named twice", name);
    terminals |= stage_bit(stage);
  }
  return terminals;
}

// Until every stage has served once, all are waited for: an engine that starts is not ready for a part of its work.
// Later only those that no rule leaves out: a request that turns out to need another one fails then, or finds it back.
Status Coordinator::check_submit(StageSet terminals) const {
  const bool wants_all = draining_ || !was_ready_;
  std::string missing = wants_all ? why_not_ready() : placement_.why_missing(graph_.must_have(terminals));
  if (missing.empty()) missing = placement_.why_stale(graph_.may_need(terminals));
  if (!missing.empty()) return Status(StatusCode::kUnavailable, "the pipeline is not ready: " + missing);
  RETURN_IF_ERROR(requests_.check_capacity());
  return aborts_.check_capacity();
}

Result<std::unique_ptr<LiveRequest>> Coordinator::admit(const Value& inputs, const SubmitOptions& options,
                                                        int64_t now_ms) const {
  ASSIGN_OR_RETURN(const StageSet terminals, terminals_of(inputs, options));
  RETURN_IF_ERROR(check_submit(terminals));
  auto request = std::make_unique<LiveRequest>();
  const int64_t limit_ms = spec_.request_timeout_s * 1000;
  request->timeout_ms = options.timeout_ms > 0 ? std::min(options.timeout_ms, limit_ms) : limit_ms;
  request->deadline_ms = now_ms + request->timeout_ms;
  request->terminals = request->answer.open = terminals;
  request->entry = graph_.entry();
  if (options.inputs_follow && !options_.prompt_stage.empty()) request->entry = graph_.index_of(options_.prompt_stage);
  request->complete_inputs.resize(graph_.size());
  request->traceparent = options.traceparent;
  request->route.assign(graph_.size(), Placement::kNone);
  return request;
}

Coordinator::Opened Coordinator::open(const Value& inputs, SubmitOptions options, RequestSink sink, int64_t now_ms) {
  // Refused requests have an id too: their end is an event, as that of any other.
  const ReqId id = requests_.new_id();
  Result<std::unique_ptr<LiveRequest>> request = admit(inputs, options, now_ms);
  if (!request.ok()) {
    requests_.refuse(id, sink, request.status());
    return {.id = id, .refused = true};
  }
  (*request)->id = id;
  (*request)->sink = std::move(sink);
  LiveRequest& live = requests_.add(std::move(request).value());
  // Placed when the prompt is known: its tokens and prefix decide where. The deadline runs from now on.
  if (options.inputs_follow) return {.id = id};
  choose_route(live, std::nullopt, {});
  return {.id = id, .inputs_to = entry_of(live)};
}

void Coordinator::start(ReqId id, Result<wire::Payload> inputs, int64_t now_ms) {
  LiveRequest* request = requests_.find(id);
  if (request == nullptr) return payloads_.forget(id);  // the end came before there was something to forget
  if (!inputs.ok()) return fail(id, inputs.status(), now_ms);
  std::get<wire::Submit>(request->submit).payload = std::move(inputs).value();
  requests_.queue(*request);
  try_start(id, now_ms);
}

void Coordinator::set_prompt(ReqId id, wire::TokenizedRequest request, const PlacementHint& hint, int64_t now_ms) {
  LiveRequest* live = requests_.find(id);
  if (live == nullptr || live->state != RequestState::kPending || requests_.is_queued(id)) return;
  // Asked again: a stage may have been lost while the prompt was tokenized.
  std::string missing = placement_.why_missing(graph_.must_have(live->terminals));
  if (missing.empty()) missing = placement_.why_stale(graph_.may_need(live->terminals));
  Status status;
  if (!missing.empty()) status = Status(StatusCode::kUnavailable, "the pipeline is not ready: " + missing);
  if (status.ok()) status = placement_.check_hint(hint, live->terminals);
  if (!status.ok()) return fail(id, status, now_ms);
  choose_route(*live, std::move(request), hint);
  start(id, payloads_.give(id, Value(), entry_of(*live)), now_ms);  // nothing to copy
}

// Chooses the replicas and makes the message to the entry stage, but for the inputs.
void Coordinator::choose_route(LiveRequest& request, std::optional<wire::TokenizedRequest> generate,
                               const PlacementHint& hint) {
  wire::Submit submit{.id = request.id, .from = members_.self()};
  for (std::size_t stage = 0; stage < graph_.size(); ++stage) {
    if ((request.terminals & stage_bit(stage)) == 0) continue;
    request.answer.streams[stage];
    submit.terminals.push_back(spec_.stages[stage].name);
  }
  request.route = placement_.begin(request.terminals, hint);
  request.hinted_tokens = hint.tokens;
  submit.route = placement_.hops(request.route);
  submit.generate = std::move(generate);
  submit.traceparent = request.traceparent;
  request.submit = std::move(submit);
}

const wire::Peer& Coordinator::entry_of(const LiveRequest& request) const {
  return members_.replicas()[request.route[request.entry]].peer;
}

// Sends a queued request to its entry stage; where that cannot take it yet, the next tick tries again.
void Coordinator::try_start(ReqId id, int64_t now_ms) {
  LiveRequest* request = requests_.find(id);
  if (holding_ || request == nullptr || !requests_.is_queued(id)) return;
  // A stage refuses chunks of a replica that is not in its table of peers yet.
  if (!placement_.senders_know(request->route, request->answer.open)) return;
  // What is left of it, since hosts share no clock; computed with each try.
  std::get<wire::Submit>(request->submit).timeout_ms = request->deadline_ms - now_ms;
  const Status sent = outboxes_.send(request->route[request->entry], request->submit);
  if (sent.code() == StatusCode::kResourceExhausted || sent.code() == StatusCode::kUnavailable) return;
  if (!sent.ok()) return fail(id, sent, now_ms);
  requests_.set_running(*request);
  request->last_seen_ms = now_ms;
  delivery_.begin(*request, now_ms);
}

// ---- the end

// Every end of a live request comes through here; the table lets each end once.
void Coordinator::end(ReqId id, RequestEvent::End how, bool report, int64_t now_ms) {
  // Taken out of the table first: whatever the calls below lead to finds no live request.
  const auto request = requests_.end(id, how.state);
  if (!request) return;
  delivery_.erase(*request);
  payloads_.forget(id);
  placement_.end(request->route, request->hinted_tokens);
  // Its stages learn of a completed request by themselves; of any other end only by an abort.
  if (how.state != RequestState::kCompleted && request->state == RequestState::kRunning) {
    aborts_.open(id, request->route, connected(request->route), now_ms);
  }
  if (!report) return;
  RequestEvent event{.id = id, .body = std::move(how)};
  request->sink(event);
}

// What the delivery has found over. At once, so that nothing else of the step ends it in another way.
void Coordinator::end_delivered(int64_t now_ms) {
  for (Delivery::Ended& ended : delivery_.take_ended()) end(ended.id, std::move(ended.how), true, now_ms);
}

void Coordinator::take_arrivals(int64_t now_ms) {
  delivery_.take_arrivals(now_ms);
  end_delivered(now_ms);
}

void Coordinator::client_ready(ReqId id, int64_t now_ms) {
  delivery_.on_client_ready(id, now_ms);
  end_delivered(now_ms);
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
  for (const ReqId id : requests_.select([](const LiveRequest&) { return true; })) fail(id, status, now_ms);
  commands_.end_all(status);
}

// ---- the step

void Coordinator::handle(wire::Message message, int64_t now_ms) {
  if (auto* batch = std::get_if<wire::ChunkBatch>(&message)) {
    if (const auto slot = members_.current_slot(batch->from)) {
      delivery_.handle(members_.replicas()[*slot].stage_index, *slot, *batch, now_ms);
      end_delivered(now_ms);
    }
  } else if (auto* status = std::get_if<wire::StageStatus>(&message)) {
    members_.handle(*status, now_ms);
    was_ready_ = was_ready_ || why_not_ready().empty();
  } else if (auto* self = std::get_if<wire::Register>(&message)) {
    members_.handle(*self, now_ms);
  } else if (auto* ack = std::get_if<wire::AbortAck>(&message)) {
    if (const auto slot = members_.current_slot(ack->from)) aborts_.on_ack(ack->id, *slot);
  } else if (auto* report = std::get_if<wire::RequestReport>(&message)) {
    if (const auto slot = members_.current_slot(report->from)) lost_requests_.on_report(*slot, std::move(*report));
  } else if (auto* reply = std::get_if<wire::AdminReply>(&message)) {
    commands_.on_reply(*reply);
  } else {
    ++unknown_;
    LOG_WARNING("ignored a message of type {}: it is not for a coordinator", wire::message_type(message));
  }
  // What the message led to, in this sequence: payloads that have come may complete a request that a lost stage would
  // fail.
  take_arrivals(now_ms);
  take_membership(now_ms);
  delivery_.send_acks();
}

void Coordinator::tick(int64_t now_ms) {
  payloads_.tick(now_ms);
  take_arrivals(now_ms);
  members_.tick(now_ms);
  take_membership(now_ms);
  for (const ReqId id : requests_.queued()) try_start(id, now_ms);
  delivery_.tick(now_ms);
  end_delivered(now_ms);
  while (const LiveRequest* late = requests_.overdue(now_ms)) {
    const double seconds = static_cast<double>(late->timeout_ms) / 1000;
    fail(late->id, error(StatusCode::kDeadline, "the request took more than {:g} s, the limit", seconds), now_ms);
  }
  for (const LostRequests::Lost& lost : lost_requests_.tick(now_ms)) {
    LOG_WARNING("request {}: {}", lost.id.value, lost.why);
    fail(lost.id, error(StatusCode::kUnavailable, "a message was lost between the stages: {}", lost.why), now_ms);
  }
  for (const Aborts::GivenUp& abort : aborts_.tick(now_ms)) {
    LOG_ERROR("request {}: {} never acknowledged its abort", abort.id.value, members_.replicas()[abort.slot].name);
  }
  commands_.tick(now_ms);
  take_arrivals(now_ms);
  delivery_.send_acks();
}

}  // namespace millrace
