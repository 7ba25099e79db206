#include "stages/stage_loop_stage.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>

#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "control/counters.h"
#include "stages/log_lines.h"
#include "stages/loop/profile_commands.h"
#include "stages/loop/thread_worker_host.h"

namespace millrace {

namespace {

// One stage of each process reports the numbers that are the whole process's: the first that is made, until it ends.
std::atomic<const StageLoopStage*> process_reporter{nullptr};

// The control plane's counters, with their labels in the name, as /metrics writes them.
std::vector<wire::Metric> process_metrics(const std::string& process) {
  std::vector<wire::Metric> out;
  for (const MetricSample& sample : control_samples()) {
    std::string name = fmt::format("{}{{process={}", sample.name, process);
    for (const auto& [key, value] : sample.labels) name += fmt::format(",{}={}", key, value);
    out.push_back({.name = name + "}", .value = sample.value});
  }
  return out;
}

// Traces keep the addresses of names. There are a few for each stage that this process ever had.
const char* for_ever(const std::string& name) {
  static std::mutex mutex;
  static auto& names = *new std::set<std::string>();
  std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

}  // namespace

Result<std::string> carry_out(const wire::AdminRequest& command) {
  if (command.action == wire::AdminAction::kStartProfile) return loop::start_recording(command.argument);
  if (command.action == wire::AdminAction::kStopProfile) return loop::stop_recording(command.argument);
  if (command.action == wire::AdminAction::kShowLog) return log_lines_json(command.argument);
  return error(StatusCode::kUnsupported, "the command {} is not known here", static_cast<int>(command.action));
}

Result<std::unique_ptr<StageLoopStage>> StageLoopStage::make(StageLoopConfig config, const Library& library,
                                                             StageLoopStageEnv env) {
  CHECK(env.inbox);
  const StageSpec& spec = config.spec;
  const auto maker = library.workers.find(spec.worker);
  if (maker == library.workers.end()) {
    return error(StatusCode::kNotFound, "{}: worker '{}' is not in the library", spec.name, spec.worker);
  }
  const StageSpans spans(env.spans, spec.name, spec.worker, config.self.replica);
  const Library::WorkerSlot slot{.stage = spec.name,
                                 .replica = config.self.replica,
                                 .threads = spec.resources.threads,
                                 .memory_mib = spec.resources.memory_mib,
                                 .nth = config.nth,
                                 .of = config.of,
                                 .streams = spec.terminal || !spec.stream_to.empty(),
                                 .to_client = spec.terminal && spec.stream_to.empty(),
                                 .stream_to = config.target_workers,
                                 .chain = std::move(env.chain),
                                 .transfers = std::move(env.transfers),
                                 .features = with_spans(std::move(env.features), spans),
                                 .weights_rank = config.weights_rank,
                                 .spans = spans};
  std::shared_ptr<Waker> waker = env.inbox->waker();
  std::function<void()> wake = [waker] { waker->wake(); };
  const auto make_worker = [make = maker->second, args = spec.args, slot] { return make(args, slot); };
  std::unique_ptr<loop::WorkerHost> host;
  if (library.short_calls.contains(spec.worker)) {
    host = std::make_unique<loop::InlineWorkerHost>(make_worker, wake);
  } else {
    host = std::make_unique<loop::ThreadWorkerHost>(make_worker, wake, for_ever(spec.name + " worker"));
  }
  const loop::WorkerHost* host_view = host.get();
  StageLoopEnv loop_env{.coordinator = std::move(env.coordinator),
                        .connect = std::move(env.connect),
                        .relays = std::move(env.relays),
                        .worker = std::move(host),
                        .wake = wake,
                        .next_incarnation = std::move(env.next_incarnation),
                        .admin = env.admin ? std::move(env.admin) : carry_out,
                        .on_peers = std::move(env.on_peers),
                        .on_lease_lost = std::move(env.on_lease_lost),
                        .spans = env.spans};
  auto self = std::make_shared<const StageLoopStage*>(nullptr);  // known at the end
  loop_env.process_metrics = [self, process = spec.process]() -> std::vector<wire::Metric> {
    const StageLoopStage* none = nullptr;
    const bool mine = process_reporter.compare_exchange_strong(none, *self) || none == *self;
    return mine ? process_metrics(process) : std::vector<wire::Metric>{};
  };
  const std::string name = spec.name;  // the next line takes the config
  ASSIGN_OR_RETURN(std::unique_ptr<StageLoop> loop, StageLoop::make(std::move(config), library, std::move(loop_env)));
  std::unique_ptr<StageLoopStage> stage(new StageLoopStage(name, std::move(env.inbox), std::move(loop), host_view));
  *self = stage.get();
  return stage;
}

StageLoopStage::StageLoopStage(const std::string& name, std::unique_ptr<Inbox> inbox, std::unique_ptr<StageLoop> loop,
                               const loop::WorkerHost* host)
    : thread_name_(for_ever(name)), inbox_(std::move(inbox)), loop_(std::move(loop)), host_(host) {}

StageLoopStage::~StageLoopStage() {
  const StageLoopStage* self = this;
  process_reporter.compare_exchange_strong(self, nullptr);
}

// Until none waits, or the loop's time is over.
void StageLoopStage::handle(std::optional<wire::Message> message) {
  if (!message) return;
  trace::Span span("messages", "stage");
  const int64_t until_ms = monotonic_ms() + kMaxReceiveMs;
  int count = 1;
  for (; message; ++count) {
    const int64_t now_ms = monotonic_ms();
    loop_->handle(std::move(*message), now_ms);
    if (count == kMaxMessagesPerTick || now_ms >= until_ms) break;
    message = inbox_->receive(0);
  }
  span.note("messages", count);
}

void StageLoopStage::run() {
  trace::name_thread(thread_name_);
  int64_t wake_ms = loop_->tick(monotonic_ms());
  while (!loop_->ended() && !stop_requested()) {
    const int64_t wait_ms = std::clamp<int64_t>(wake_ms - monotonic_ms(), 0, kStopPollMs);
    std::optional<wire::Message> message = inbox_->receive(static_cast<int>(wait_ms));
    handle(std::move(message));
    if (const int64_t limit_ms = drain_ms_.exchange(-1, std::memory_order_acq_rel); limit_ms >= 0) {
      loop_->drain(monotonic_ms(), limit_ms);
    }
    {
      trace::Span span("tick", "stage");
      wake_ms = loop_->tick(monotonic_ms());
    }
    if (host_->state() == loop::WorkerHost::State::kFailed && !loop_->ended()) {
      loop_->fail_stage(host_->failure());
    }
  }
  if (leave_.load(std::memory_order_acquire)) loop_->leave("it was stopped");
  end_status_ = loop_->end_status();
  if (!end_status_.ok()) LOG_DEBUG("the stage ends: {}", end_status_.to_string());  // its owner prints it
}

}  // namespace millrace
