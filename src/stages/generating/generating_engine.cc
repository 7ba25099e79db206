#include "stages/generating/generating_engine.h"

#include <fmt/format.h>

#include <utility>

#include "base/trace.h"
#include "stages/scheduler_metrics.h"

namespace millrace {

GeneratingEngine::GeneratingEngine(SchedulerOptions options, std::unique_ptr<Runner> runner)
    : runner_(std::move(runner)), scheduler_(std::move(options), *runner_) {
  const RunnerFacts facts = runner_->facts();
  checksums_[facts.weight_version] = facts.weights_checksum;
}

bool GeneratingEngine::step(Deltas& out, int poll_ms) {
  if (!scheduler_.busy()) return scheduler_.step(0, out);  // an idle moment is when the books are checked
  trace::Span span("step", "scheduler");
  const uint64_t before = trace::recording() ? scheduler_.facts().computed_tokens : 0;
  const bool busy = scheduler_.step(poll_ms, out);
  if (trace::recording()) span.note("rows", static_cast<int64_t>(scheduler_.facts().computed_tokens - before));
  return busy;
}

void GeneratingEngine::note_weights(uint64_t version, uint64_t checksum) {
  const uint64_t serving = scheduler_.facts().weight_version;
  if (checksums_.size() >= kMaxKnownWeights) {
    std::erase_if(checksums_, [serving](const auto& known) { return known.first != serving; });
  }
  checksums_[version] = checksum;
}

uint64_t GeneratingEngine::weights_checksum(uint64_t version) const {
  const auto known = checksums_.find(version);
  return known == checksums_.end() ? 0 : known->second;
}

void GeneratingEngine::describe(wire::StageStatus& status) const {
  const SchedulerFacts facts = scheduler_.facts();
  status.steps = facts.steps;
  status.running = facts.running;
  status.waiting = facts.waiting;
  status.pages_total = facts.pages_total;
  status.pages_free = facts.pages_free;
  status.pages_cached = facts.pages_cached;
  status.page_size = facts.page_size;
  status.weight_version = facts.weight_version;
  status.weights_checksum = weights_checksum(facts.weight_version);
  status.metrics = metrics_of(facts);
  for (RunnerMetric& metric : runner_->metrics()) status.metrics.push_back({std::move(metric.name), metric.value});
  const std::string missing = runner_->missing();
  if (missing.empty()) return;
  status.state = wire::StageState::kLoading;
  status.message = missing;
  status.progress = 0;
}

Status GeneratingEngine::flush_when_idle(uint64_t command, int64_t deadline_ms) {
  if (flushes_.size() >= kMaxFlushes) {
    return error(StatusCode::kResourceExhausted, "{} flushes wait already, the limit", flushes_.size());
  }
  flushes_.push_back({command, deadline_ms});
  return ok_status();
}

void GeneratingEngine::settle_flushes(int64_t now_ms, const Reply& reply) {
  if (flushes_.empty()) return;
  const SchedulerFacts facts = scheduler_.facts();
  if (!scheduler_.busy() || (facts.paused && facts.in_flight == 0)) {
    Result<std::string> done = fmt::format("{} cached pages are free", facts.pages_cached);
    if (const Status status = scheduler_.flush_cache(); !status.ok()) done = status;
    for (const Flush& flush : flushes_) reply(flush.command, done);
    return flushes_.clear();
  }
  std::erase_if(flushes_, [&](const Flush& flush) {
    if (now_ms < flush.deadline_ms) return false;
    reply(flush.command,
          error(StatusCode::kConflict, "the cache is not flushed: {} requests run and {} wait; wanted none of both",
                facts.running, facts.waiting));
    return true;
  });
}

}  // namespace millrace
