// From payloads to the start of the work: fan-in, its rule, the merge.
#include <algorithm>
#include <exception>

#include "stages/loop/detach.h"
#include "stages/stage_loop.h"

namespace millrace {

namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "nobody" : text;
}

// What a rule says, where an exception is one more way to say no.
template <typename T, typename Rule>
Result<T> ask(const char* what, const Rule& rule) {
  try {
    Result<T> answer = rule();
    if (!answer.ok()) return answer.status().with_prefix(what);
    return answer;
  } catch (const std::exception& e) {
    return internal_error("{} threw: {}", what, e.what());
  } catch (...) {
    return internal_error("{} threw something that is no exception", what);
  }
}

}  // namespace

void StageLoop::on_payload_header(Request& request, const wire::Origin& origin, uint64_t seq, wire::Payload& payload) {
  const std::string& from = origin.stage;
  loop::InEdge& edge = request.in.at(from);
  if (edge.streams && !edge.total) {
    return fail(request, error(StatusCode::kConflict, "the result of '{}' came before the end of its stream", from));
  }
  const std::vector<std::string>& wait_for = config_.spec.wait_for;
  if (wait_for.empty() && !request.payloads.empty()) {
    return fail(request, error(StatusCode::kConflict, "a payload of '{}' came after one of '{}'; wanted one alone",
                               from, request.payloads.begin()->first));
  }
  if (!wait_for.empty() && !contains(wait_for, from)) {
    return fail(request,
                error(StatusCode::kConflict, "a payload came from '{}'; wanted one of {}", from, listed(wait_for)));
  }
  if (request.expected && !contains(*request.expected, from)) {
    return fail(request, error(StatusCode::kConflict, "a payload came from '{}'; this request waits for {}", from,
                               listed(*request.expected)));
  }
  ++edge.next;
  edge.has_result = true;
  request.payloads[from];
  fetch(request, {.kind = loop::CallPurpose::Kind::kGetPayload, .request = request.id, .edge = from, .seq = seq},
        std::move(payload));
}

void StageLoop::payload_here(Request& request, const std::string& from, Value value) {
  loop::InPayload& payload = request.payloads.at(from);
  payload.here = true;
  if (!from.empty()) {
    loop::InEdge& edge = request.in.at(from);
    edge.result_here = true;
    acknowledge_if_due(request.id, from, edge);
  }
  if (config_.spec.wait_for.empty()) return start(request, std::move(value));
  Status status = ask_wait_rule(request, from, value);
  payload.value = std::move(value);
  if (status.ok()) status = check_sources(request);
  if (!status.ok()) return fail(request, status);
  maybe_merge(request);
  if (request.phase != Request::Phase::kLive) return;  // a merge that failed: nothing is kept any more
  // What waits for other payloads must not hold its sender's credit: theirs may need it.
  if (!request.started && payload.value) loop::detach(*payload.value);
  watch_early(request);
}

// Asked with each payload until it answers; without a rule, all of wait_for.
Status StageLoop::ask_wait_rule(Request& request, const std::string& from, const Value& value) {
  if (request.expected) return ok_status();
  if (!rules_.wait) {
    request.expected = config_.spec.wait_for;
    return ok_status();
  }
  using Answer = std::optional<std::vector<std::string>>;
  Result<Answer> answer = ask<Answer>("wait_for_rule", [&] { return rules_.wait(request.id, from, value); });
  RETURN_IF_ERROR(answer.status());
  if (!*answer) return ok_status();
  if ((*answer)->empty()) return internal_error("wait_for_rule names nobody; wanted some of wait_for");
  for (const std::string& name : **answer) {
    if (contains(config_.spec.wait_for, name)) continue;
    return internal_error("wait_for_rule names '{}'; wanted some of {}", name, listed(config_.spec.wait_for));
  }
  request.expected = std::move(*answer);
  return ok_status();
}

Status StageLoop::check_sources(const Request& request) const {
  if (!request.expected) return ok_status();
  for (const auto& [from, payload] : request.payloads) {
    if (contains(*request.expected, from)) continue;
    return error(StatusCode::kConflict, "a payload came from '{}'; this request waits for {}", from,
                 listed(*request.expected));
  }
  return ok_status();
}

void StageLoop::maybe_merge(Request& request) {
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
  Result<Value> merged = ask<Value>("merge", [&] { return rules_.merge(std::move(values)); });
  if (!merged.ok()) return fail(request, merged.status());
  start(request, std::move(merged).value());
}

void StageLoop::start(Request& request, Value payload) {
  Result<std::vector<std::string>> targets =
      targets_of(rules_.stream_done_to, config_.spec.stream_to, request.id, payload, "stream_done_to", true);
  if (!targets.ok()) return fail(request, targets.status());
  request.stream_targets = std::move(targets).value();
  request.started = true;
  if (!config_.stream_from.empty()) loop::detach(payload);  // the worker holds it while it waits for the stream
  to_worker(request, {.kind = loop::WorkEvent::Kind::kStart, .id = request.id, .body = std::move(payload)});
  if (request.phase == Request::Phase::kLive) deliver(request);
}

// With a prompt that is tokenized already, which is no value that a rule could look at.
void StageLoop::start(Request& request, wire::TokenizedRequest generate) {
  request.stream_targets = config_.spec.stream_to;
  request.started = true;
  generate.id = request.id;
  to_worker(request, {.kind = loop::WorkEvent::Kind::kGenerate,
                      .id = request.id,
                      .request = std::make_shared<wire::TokenizedRequest>(std::move(generate))});
}

// The answer of a rule, held to `all`, each name once.
Result<std::vector<std::string>> StageLoop::targets_of(const Library::Route& rule, const std::vector<std::string>& all,
                                                       ReqId id, const Value& value, const char* what,
                                                       bool may_be_none) const {
  if (!rule) return all;
  using Answer = std::vector<std::string>;
  Result<Answer> answer = ask<Answer>(what, [&] { return rule(id, value); });
  RETURN_IF_ERROR(answer.status());
  if (answer->empty() && !may_be_none) return internal_error("{} names nobody; wanted some of {}", what, listed(all));
  std::vector<std::string> targets;
  for (const std::string& name : *answer) {
    if (!contains(all, name)) return internal_error("{} names '{}'; wanted some of {}", what, name, listed(all));
    if (contains(targets, name)) return internal_error("{} names '{}' twice", what, name);
    targets.push_back(name);
  }
  return targets;
}

}  // namespace millrace
