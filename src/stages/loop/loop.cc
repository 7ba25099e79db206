// The machine itself: making one, a step, the books.
#include <algorithm>
#include <variant>

#include "stages/stage_graph.h"
#include "stages/stage_loop.h"

namespace millrace {

using loop::kNoWake;

Result<StageLoopConfig> make_loop_config(const std::vector<StageSpec>& stages, const std::string& entry,
                                         const std::string& stage) {
  StageLoopConfig config;
  bool found = false;
  for (const StageSpec& spec : stages) {
    config.replicas[spec.name] = static_cast<uint32_t>(std::max(spec.replicas, 1));
    if (contains(spec.next, stage)) config.payload_from.push_back(spec.name);
    if (contains(spec.stream_to, stage)) config.stream_from.push_back(spec.name);
    if (spec.name == stage) config.spec = spec, config.stalled_ms = spec.stalled_ms, found = true;
  }
  if (!found) return error(StatusCode::kNotFound, "no stage '{}' in the pipeline", stage);
  const StageGraph graph(stages, entry);
  for (const auto* targets : {&config.spec.next, &config.spec.stream_to}) {
    for (const std::string& target : *targets) config.reaches[target] = graph.terminals_of(target);
  }
  config.entry = stage == entry;
  config.self.stage = stage;
  return config;
}

namespace {

template <typename Rule>
Status find_rule(const std::string& name, const std::map<std::string, Rule>& rules, const char* what, Rule& rule) {
  if (name.empty()) return ok_status();
  const auto found = rules.find(name);
  if (found == rules.end()) return error(StatusCode::kNotFound, "{} '{}' is not in the library", what, name);
  rule = found->second;
  return ok_status();
}

}  // namespace

Status StageLoop::find_rules(const StageSpec& spec, const Library& library, Rules& rules) {
  RETURN_IF_ERROR(find_rule(spec.route, library.routes, "route", rules.route));
  RETURN_IF_ERROR(find_rule(spec.wait_for_rule, library.wait_rules, "wait_for_rule", rules.wait));
  RETURN_IF_ERROR(find_rule(spec.merge, library.merges, "merge", rules.merge));
  RETURN_IF_ERROR(find_rule(spec.stream_done_to, library.routes, "stream_done_to", rules.stream_done_to));
  for (const auto& [target, name] : spec.project_payload) {
    RETURN_IF_ERROR(find_rule(name, library.projections, "project_payload", rules.project[target]));
  }
  if (!spec.wait_for.empty() && !rules.merge) {
    return invalid_argument("stage '{}' waits for several payloads and has no merge; wanted one", spec.name);
  }
  return ok_status();
}

Result<std::unique_ptr<StageLoop>> StageLoop::make(StageLoopConfig config, const Library& library,
                                                   StageLoopDoors doors) {
  CHECK(doors.coordinator && doors.connect && doors.worker);
  Rules rules;
  RETURN_IF_ERROR(find_rules(config.spec, library, rules).with_prefix(config.spec.name));
  if (config.spec.terminal != config.spec.next.empty()) {
    return invalid_argument("stage '{}' is {}a terminal and has {} next stages; wanted one or the other",
                            config.spec.name, config.spec.terminal ? "" : "not ", config.spec.next.size());
  }
  if (!doors.wake) doors.wake = [] {};
  if (!doors.next_incarnation) doors.next_incarnation = [](uint64_t last) { return last + 1; };
  config.self.relays.clear();
  for (const auto& [name, relay] : doors.relays) {
    config.self.relays.push_back({.relay = name, .address = {relay->address()}});
  }
  config.self.up = true;
  return std::unique_ptr<StageLoop>(new StageLoop(std::move(config), std::move(rules), std::move(doors)));
}

std::vector<std::string> StageLoop::sources_of(const StageLoopConfig& config) {
  std::vector<std::string> out = config.payload_from;
  for (const std::string& name : config.stream_from) {
    if (!contains(out, name)) out.push_back(name);
  }
  return out;
}

StageLoop::StageLoop(StageLoopConfig config, Rules rules, StageLoopDoors doors)
    : config_(std::move(config)),
      sources_(sources_of(config_)),
      rules_(std::move(rules)),
      doors_(std::move(doors)),
      book_(doors_.connect),
      outgoing_([this](const loop::Outgoing::Receiver& to, wire::Message& message) { return send_batch(to, message); }),
      calls_(doors_.wake) {}

// Puts and gets are cancelled by calls_; the worker is not called any more.
StageLoop::~StageLoop() { doors_.worker->close(); }

void StageLoop::handle(wire::Message message, int64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  if (ended_) return;
  watch_lease();
  dispatch(std::move(message));
  settle();
}

int64_t StageLoop::tick(int64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  if (ended_) return kNoWake;
  watch_lease();
  say_membership();
  int64_t wake_ms = doors_.worker->run(now_ms_);
  const bool worker_is_due = wake_ms <= now_ms_;
  settle();
  expire();
  if (now_ms_ >= retry_ms_) retry();
  if (now_ms_ >= next_ack_ms_) acknowledge_idle();
  settle();
  flush_notices();
  flush();
  watch_drain();
  if (ended_) return kNoWake;
  for (const int64_t due_ms : {retry_ms_, next_ack_ms_, next_say_ms_, tombstones_.due_ms()}) {
    wake_ms = std::min(wake_ms, due_ms);
  }
  if (!deadlines_.empty()) wake_ms = std::min(wake_ms, deadlines_.begin()->first + loop::kDeadlineGraceMs);
  if (!parked_.empty()) wake_ms = std::min(wake_ms, parked_.front().until_ms);
  if (drain_until_ms_) wake_ms = std::min(wake_ms, *drain_until_ms_);
  return more_to_settle_ || worker_is_due ? now_ms_ : std::max(wake_ms, now_ms_ + 1);
}

// Takes what the relays and the worker have, and what follows from it; after kMaxSettleRounds the rest is left to the
// next step.
void StageLoop::settle() {
  std::vector<loop::CallEnd> ends;
  std::vector<loop::WorkOutput> outputs;
  more_to_settle_ = true;
  for (int round = 0; round < loop::kMaxSettleRounds && more_to_settle_; ++round) {
    ends.clear();
    outputs.clear();
    calls_.collect(ends);
    hear_relays(ends);
    doors_.worker->collect(outputs);
    on_outputs(outputs);
    if (!worker_line_.empty() && !outputs.empty()) retry_ms_ = std::min(retry_ms_, now_ms_);
    more_to_settle_ = !ends.empty() || !outputs.empty();
    sweep();
  }
}

StageLoop::Request* StageLoop::live(ReqId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second->phase != Request::Phase::kLive) return nullptr;
  return found->second.get();
}

StageLoopBooks StageLoop::books() const {
  StageLoopBooks books;
  books.requests = requests_.size();
  books.puts = calls_.open_puts();
  books.gets = calls_.open_gets();
  books.drains = drains_;
  books.parked = parked_.size();
  books.notices = notices_.size();
  books.lists = waiting_edges_.size() + waiting_gets_.size() + worker_line_.size() + deadlines_.size();
  books.queued_items = outgoing_.chunks();
  books.tombstones = tombstones_.size();
  for (const auto& [id, request] : requests_) {
    if (request->phase == Request::Phase::kEnding) ++books.ending;
    for (const auto& [from, stream] : request->in) books.held_chunks += stream.held.size();
    for (const auto& [target, edge] : request->out) books.queued_items += edge.queue.size();
    books.queued_bytes += request->waiting_bytes;
    books.worker_events += request->to_worker.size();
  }
  return books;
}

}  // namespace millrace
