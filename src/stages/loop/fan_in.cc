#include "stages/loop/fan_in.h"

#include <memory>
#include <utility>

#include "stages/loop/detach.h"

namespace millrace::loop {

void FanIn::on_submit(LoopRequest& request, wire::Payload payload) {
  if (!context_.config.spec.wait_for.empty()) {
    return context_.fail(request, internal_error("the entry stage waits for other stages' payloads"));
  }
  request.payloads[""];
  fetches_.fetch(request, {.kind = CallPurpose::Kind::kGetPayload, .request = request.id}, std::move(payload));
}

void FanIn::on_submit(LoopRequest& request, wire::TokenizedRequest generate) {
  if (!context_.config.spec.wait_for.empty()) {
    return context_.fail(request, internal_error("a stage with a prompt waits for other stages' payloads"));
  }
  request.payloads[""].here = true;
  request.stream_targets = context_.config.spec.stream_to;
  request.started = true;
  generate.id = request.id;
  work_.add(request, {.kind = WorkEvent::Kind::kGenerate, .id = request.id, .request = std::move(generate)});
}

void FanIn::on_result(LoopRequest& request, const wire::Origin& from, const wire::Chunk& chunk, wire::Payload payload) {
  InEdge* edge = streams_.next_on_edge(request, from, chunk);
  if (!edge) return;
  if (Status status = check(request, *edge, from.stage); !status.ok()) {
    return context_.fail(request, std::move(status));
  }
  ++edge->next;
  edge->has_result = true;
  request.payloads[from.stage];
  fetches_.fetch(request,
                 {.kind = CallPurpose::Kind::kGetPayload, .request = request.id, .edge = from.stage, .seq = chunk.seq},
                 std::move(payload));
}

Status FanIn::check(const LoopRequest& request, const InEdge& edge, const std::string& from) const {
  if (edge.streams && !edge.total) {
    return error(StatusCode::kConflict, "the result of '{}' came before the end of its stream", from);
  }
  const std::vector<std::string>& wait_for = context_.config.spec.wait_for;
  if (wait_for.empty() && !request.payloads.empty()) {
    return error(StatusCode::kConflict, "a payload of '{}' came after one of '{}'; wanted one alone", from,
                 request.payloads.begin()->first);
  }
  if (!wait_for.empty() && !contains(wait_for, from)) {
    return error(StatusCode::kConflict, "a payload came from '{}'; wanted one of {}", from, listed(wait_for));
  }
  return check_source(request, from);
}

void FanIn::arrived(LoopRequest& request, const std::string& from, Value value) {
  InPayload& payload = request.payloads.at(from);
  payload.here = true;
  if (!from.empty()) {
    InEdge& edge = request.in.at(from);
    edge.result_here = true;
    acks_.acknowledge_if_due(request.id, from, edge);
  }
  if (context_.config.spec.wait_for.empty()) return start(request, std::move(value));
  Status status = set_expected(request, from, value);
  payload.value = std::move(value);
  if (!status.ok()) return context_.fail(request, std::move(status));
  merge_if_complete(request);
  if (!request.is_live()) return;  // a merge that failed: no payload is kept any more
  if (!request.started && payload.value) detach(*payload.value);
  streams_.check_payload_first(request);
}

// The rule is asked with each payload until it answers; those that came before must be some of its answer.
Status FanIn::set_expected(LoopRequest& request, const std::string& from, const Value& value) {
  if (request.expected) return ok_status();
  ASSIGN_OR_RETURN(request.expected, rules_.wait_for(request.id, from, value));
  for (const auto& [source, payload] : request.payloads) RETURN_IF_ERROR(check_source(request, source));
  return ok_status();
}

Status FanIn::check_source(const LoopRequest& request, const std::string& from) {
  if (!request.expected || contains(*request.expected, from)) return ok_status();
  return error(StatusCode::kConflict, "a payload came from '{}'; this request waits for {}", from,
               listed(*request.expected));
}

void FanIn::merge_if_complete(LoopRequest& request) {
  if (request.started || !request.expected) return;
  for (const std::string& name : *request.expected) {
    const auto payload = request.payloads.find(name);
    if (payload == request.payloads.end() || !payload->second.here) return;
  }
  std::map<std::string, Value> values;
  for (auto& [from, payload] : request.payloads) {
    values[from] = std::move(*payload.value);
    payload.value.reset();
  }
  Result<Value> merged = rules_.merge(std::move(values));
  if (!merged.ok()) return context_.fail(request, merged.status());
  start(request, std::move(merged).value());
}

void FanIn::start(LoopRequest& request, Value payload) {
  Result<LoopRules::Names> targets = rules_.stream_targets(request.id, payload);
  if (!targets.ok()) return context_.fail(request, targets.status());
  request.stream_targets = std::move(targets).value();
  request.started = true;
  if (!context_.config.stream_from.empty()) detach(payload);  // the worker holds it while it waits for the stream
  work_.add(request, {.kind = WorkEvent::Kind::kStart, .id = request.id, .body = std::move(payload)});
  if (request.is_live()) streams_.deliver(request);
}

}  // namespace millrace::loop
