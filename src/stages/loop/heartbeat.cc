#include "stages/loop/heartbeat.h"

#include <string>
#include <utility>

#include "base/utf8.h"
#include "wire/limits.h"

namespace millrace::loop {
namespace {

// The worst of: ready, stalled, draining, loading, failed; with the words for a person.
void set_state(LoopContext& context, wire::StageStatus& status) {
  WorkerHost& worker = *context.env.worker;
  const int64_t limit_ms = context.config.stalled_ms;
  const int64_t standing_ms = worker.standing_ms(context.now_ms);
  status.state = wire::StageState::kReady;
  status.progress = 1;
  if (limit_ms > 0 && standing_ms > limit_ms) {
    status.state = wire::StageState::kStalled;
    status.message = fmt::format("no progress for {} ms; stalled_ms is {}", standing_ms, limit_ms);
  }
  if (context.is_draining) status.state = wire::StageState::kDraining;
  if (worker.state() == WorkerHost::State::kLoading) {
    const WorkerLoad::Progress loading = worker.loading();
    status.state = wire::StageState::kLoading;
    status.message = loading.action;
    status.progress = loading.fraction;
  }
  if (worker.state() == WorkerHost::State::kFailed) {
    status.state = wire::StageState::kFailed;
    const std::string why = utf8_repair(worker.failure().to_string());
    status.message = std::string(utf8_prefix(why, wire::kMaxErrorBytes));
  }
}

RelayBooks sum_of_relays(const Relays& relays) {
  RelayBooks sum;
  for (const auto& [name, relay] : relays) {
    const RelayBooks one = relay->books();
    sum.puts += one.puts, sum.gets += one.gets, sum.lent_parts += one.lent_parts;
    sum.held_bytes += one.held_bytes;
  }
  return sum;
}

void add_loop_metrics(const LoopContext& context, const StageLoopBooks& books, wire::StageStatus& status) {
  const RelayBooks relays = sum_of_relays(context.env.relays);
  const StageLoopCounters& c = context.counters;
  const auto add = [&status](const char* name, auto value) {
    status.metrics.push_back({.name = name, .value = static_cast<double>(value)});
  };
  add("stage_requests", books.requests), add("stage_queued_items", books.queued_items);
  add("stage_queued_bytes", books.queued_bytes), add("stage_held_chunks", books.held_chunks);
  add("stage_relay_puts", relays.puts), add("stage_relay_gets", relays.gets);
  add("stage_relay_held_bytes", relays.held_bytes), add("stage_relay_lent_parts", relays.lent_parts);
  add("stage_received_total", c.received), add("stage_finished_total", c.finished);
  add("stage_failed_total", c.failed), add("stage_aborted_total", c.aborted), add("stage_stale_total", c.stale);
  add("stage_strangers_total", c.misaddressed), add("stage_repeated_total", c.repeated);
  add("stage_late_total", c.late), add("stage_unexpected_total", c.unexpected);
  add("stage_refusals_total", c.refusals), add("stage_rejoins_total", c.rejoins);
  add("stage_chunks_in_total", c.chunks_in), add("stage_chunks_out_total", c.chunks_out);
}

// Where the coordinator shares this process, its server reports them.
void add_process_metrics(const LoopContext& context, wire::StageStatus& status) {
  if (!context.env.process_metrics) return;
  const StageLoopConfig& config = context.config;
  const wire::Peer* coordinator = context.book.find(config.coordinator.stage, config.coordinator.replica);
  if (!coordinator || distance(config.self, *coordinator) == Distance::kProcess) return;
  for (wire::Metric& metric : context.env.process_metrics()) status.metrics.push_back(std::move(metric));
}

}  // namespace

wire::StageStatus make_heartbeat(LoopContext& context, const StageLoopBooks& books) {
  const WorkerHost& worker = *context.env.worker;
  const wire::Peer& self = context.config.self;
  wire::StageStatus status;
  status.stage = self.stage;
  status.replica = self.replica;
  status.incarnation = self.incarnation;
  status.peers_epoch = context.book.epoch();
  set_state(context, status);
  status.steps = worker.calls();
  status.running = static_cast<decltype(status.running)>(books.requests);
  status.waiting = static_cast<decltype(status.waiting)>(books.worker_events + worker.waiting());
  worker.describe(status);
  add_loop_metrics(context, books, status);
  add_process_metrics(context, status);
  return status;
}

}  // namespace millrace::loop
