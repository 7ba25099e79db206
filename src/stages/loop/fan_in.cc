#include "stages/loop/fan_in.h"

#include <memory>
#include <utility>

#include "stages/loop/detach.h"

namespace millrace::loop {

Status FanIn::on_submit(LoopRequest& request, wire::Payload payload) {
  if (!context_.config.spec.wait_for.empty()) {
    return internal_error("the entry stage waits for other stages' payloads");
  }
  // The entry before the fetch: fetches_payload() must be true while the bytes are on their way. The coordinator's
  // payload has no source, so its key is "".
  request.in.payloads[""];
  return fetch(request, {.kind = CallPurpose::Kind::kGetPayload, .request = request.id}, std::move(payload));
}

Status FanIn::on_submit(LoopRequest& request, wire::TokenizedRequest generate) {
  if (!context_.config.spec.wait_for.empty()) {
    return internal_error("a stage with a prompt waits for other stages' payloads");
  }
  request.in.payloads[""].here = true;
  // No rule is asked: stream_done_to decides by a payload, and a prompt has none. The targets come before the event,
  // which an inline worker answers within add().
  sender_.set_targets(request, context_.config.spec.stream_to);
  request.in.started = true;
  generate.id = request.id;
  work_.add(request, {.kind = WorkEvent::Kind::kGenerate, .request = std::move(generate)});
  return ok_status();
}

Status FanIn::on_result(LoopRequest& request, const wire::Origin& from, const wire::Chunk& chunk,
                        wire::Payload payload) {
  ASSIGN_OR_RETURN(InEdge* const edge, streams_.next_on_edge(request, from, chunk));
  if (!edge) return ok_status();
  RETURN_IF_ERROR(check(request, *edge, from.stage));
  // The number is taken before the bytes are here, so that a repetition of this result starts no second fetch.
  InputStreams::accept_result(*edge);
  request.in.payloads[from.stage];
  return fetch(request,
               {.kind = CallPurpose::Kind::kGetPayload, .request = request.id, .edge = from.stage, .seq = chunk.seq},
               std::move(payload));
}

Status FanIn::fetch(LoopRequest& request, CallPurpose purpose, wire::Payload payload) {
  ASSIGN_OR_RETURN(std::optional<Value> value, fetches_.fetch(request, purpose, std::move(payload)));
  return value ? arrived(request, purpose.edge, std::move(*value)) : ok_status();
}

Status FanIn::check(const LoopRequest& request, const InEdge& edge, const std::string& from) const {
  if (edge.streams && !edge.total) {
    return error(StatusCode::kConflict, "the result of '{}' came before the end of its stream", from);
  }
  const std::vector<std::string>& wait_for = context_.config.spec.wait_for;
  if (wait_for.empty() && !request.in.payloads.empty()) {
    return error(StatusCode::kConflict, "a payload of '{}' came after one of '{}'; wanted one alone", from,
                 request.in.payloads.begin()->first);
  }
  if (!wait_for.empty() && !contains(wait_for, from)) {
    return error(StatusCode::kConflict, "a payload came from '{}'; wanted one of {}", from, listed(wait_for));
  }
  return check_source(request, from);
}

Status FanIn::arrived(LoopRequest& request, const std::string& from, Value value) {
  InPayload& payload = request.in.payloads.at(from);
  payload.here = true;
  if (!from.empty()) streams_.result_arrived(request, from);
  if (context_.config.spec.wait_for.empty()) return start(request, std::move(value));
  RETURN_IF_ERROR(set_expected(request, from, value));
  payload.value = std::move(value);
  RETURN_IF_ERROR(merge_if_complete(request));
  // It waits for the others: copied, so that it holds no credit that one of them may need (detach.h).
  if (!request.in.started && payload.value) detach(*payload.value);
  return streams_.check_payload_first(request);
}

// The rule is asked with each payload until it answers; those that came before must be some of its answer.
Status FanIn::set_expected(LoopRequest& request, const std::string& from, const Value& value) {
  if (request.in.expected) return ok_status();
  ASSIGN_OR_RETURN(request.in.expected, rules_.wait_for(request.id, from, value));
  for (const auto& [source, payload] : request.in.payloads) RETURN_IF_ERROR(check_source(request, source));
  return ok_status();
}

Status FanIn::check_source(const LoopRequest& request, const std::string& from) {
  if (!request.in.expected || contains(*request.in.expected, from)) return ok_status();
  return error(StatusCode::kConflict, "a payload came from '{}'; this request waits for {}", from,
               listed(*request.in.expected));
}

Status FanIn::merge_if_complete(LoopRequest& request) {
  RequestInputs& in = request.in;
  if (in.started || !in.expected) return ok_status();
  for (const std::string& name : *in.expected) {
    const auto payload = in.payloads.find(name);
    if (payload == in.payloads.end() || !payload->second.here) return ok_status();
  }
  // Every payload here is one of `expected`: set_expected() has refused the others.
  std::map<std::string, Value> values;
  for (auto& [from, payload] : in.payloads) {
    values[from] = std::move(*payload.value);
    payload.value.reset();
  }
  ASSIGN_OR_RETURN(Value merged, rules_.merge(std::move(values)));
  return start(request, std::move(merged));
}

Status FanIn::start(LoopRequest& request, Value payload) {
  ASSIGN_OR_RETURN(LoopRules::Names targets, rules_.stream_targets(request.id, payload));
  sender_.set_targets(request, std::move(targets));
  request.in.started = true;
  if (!context_.config.stream_from.empty()) detach(payload);  // the worker holds it while it waits for the stream
  work_.add(request, {.kind = WorkEvent::Kind::kStart, .body = std::move(payload)});
  // Behind kStart: chunks that came before the payload waited for it.
  streams_.deliver(request);
  return ok_status();
}

}  // namespace millrace::loop
