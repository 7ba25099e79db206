#include "app/pipeline_backend.h"

#include <unistd.h>

#include <algorithm>
#include <random>

#include "app/output.h"
#include "base/log.h"

namespace millrace {
namespace {

constexpr int kShutDownMs = 500;  // that stages have to end by themselves

uint64_t random_session() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;  // 0 means none
}

}  // namespace

// The coordinator's way to stages and to the supervisor.
class PipelineBackend::Doors : public CoordinatorEnv {
 public:
  Doors(PipelineBackend& owner, std::unique_ptr<AbortPublisher> aborts) : owner_(owner), aborts_(std::move(aborts)) {}
  std::shared_ptr<Outbox> open(const std::string& endpoint) override {
    auto outbox = owner_.place_->connect(owner_.zmq_, endpoint);
    if (outbox.ok()) return std::move(outbox).value();
    LOG_WARNING("{}", outbox.status().message());
    return nullptr;
  }
  void hint_abort(ReqId id) override { aborts_->publish(id); }
  // One that died is started again anyway; one that hangs is killed for it. One that says that it failed is about to
  // end by itself, with an exit code that tells whether another start may help.
  void lost(const ReplicaView& seat, const std::string&) override {
    if (!owner_.supervisor_) return;
    owner_.note_ready(seat);
    if (seat.status.state == wire::StageState::kFailed) return;
    for (const auto& [process, seats] : owner_.processes_) {
      for (const PipelineSeat& one : seats) {
        if (one.stage != seat.stage || one.replica != seat.replica) continue;
        owner_.supervisor_->kill_hung(process, seat.peer.incarnation >> kIncarnationBits);
      }
    }
  }

 private:
  PipelineBackend& owner_;
  std::unique_ptr<AbortPublisher> aborts_;
};

PipelineBackend::PipelineBackend(PipelineSpec spec, PipelineBackendOptions options)
    : spec_(std::move(spec)),
      options_(std::move(options)),
      picture_(to_svg(spec_)),
      profile_(options_.profile_folder) {}

Result<std::unique_ptr<PipelineBackend>> PipelineBackend::make(PipelineSpec spec, PipelineBackendOptions options) {
  std::unique_ptr<PipelineBackend> backend(new PipelineBackend(std::move(spec), std::move(options)));
  RETURN_IF_ERROR(backend->open());
  return backend;
}

PipelineBackend::~PipelineBackend() { stop(); }

bool PipelineBackend::failed() {
  if (failed_.load() || !here_ || !here_->ended() || here_->status().ok()) return failed_.load();
  print_error(here_->status());
  failed_.store(true);
  return true;
}

Status PipelineBackend::open() {
  for (const StageSpec& stage : spec_.stages) {
    if (!stage.host.empty()) continue;
    for (int i = 0; i < stage.replicas; ++i) {
      std::string process = options_.single ? std::string(kFrontProcess) : stage.process;
      if (stage.replicas > 1 && process != kFrontProcess) process += fmt::format("-{}", i);
      processes_[process].push_back({stage.name, static_cast<uint32_t>(i)});
    }
  }
  ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
  run_dir_ = std::make_unique<RunDir>(std::move(run_dir));
  ASSIGN_OR_RETURN(PipelinePlace place, PipelinePlace::make(spec_, run_dir_->path(), ""));
  place_ = std::make_unique<PipelinePlace>(std::move(place));
  ASSIGN_OR_RETURN(auto inbox, bind_inbox(zmq_, place_->coordinator(), place_->key()));
  ASSIGN_OR_RETURN(auto aborts, bind_abort_publisher(zmq_, place_->aborts(), place_->key()));
  ASSIGN_OR_RETURN(relays_, place_->relays(spec_.relay));
  doors_ = std::make_unique<Doors>(*this, std::move(aborts));

  CoordinatorOptions options = options_.coordinator;
  options.session = random_session();
  if (options.spec_hash == 0) options.spec_hash = spec_.hash();
  options.self = place_->self(kCoordinatorStage, 0, 1);
  options.self.endpoint = inbox->endpoint();
  for (const auto& [name, relay] : relays_) options.self.relays.push_back({name, {relay->address()}});
  payloads_ = std::make_unique<RelayPayloads>(options.self, relays_, spec_.relay.backend,
                                              [waker = inbox->waker()] { waker->wake(); });
  coordinator_ =
      std::make_unique<CoordinatorThread>(spec_, options_.library, options, *doors_, *payloads_, std::move(inbox));

  std::vector<ChildSpec> children;
  for (const auto& [process, seats] : processes_) {
    if (process != kFrontProcess) children.push_back(child(process));
  }
  if (!seats_of(std::string(kFrontProcess)).empty()) {
    ASSIGN_OR_RETURN(here_, PipelineHost::make(spec_, options.spec_hash, options_.library, *place_, zmq_,
                                               seats_of(std::string(kFrontProcess)), uint64_t{1} << kIncarnationBits));
  }
  if (children.empty()) return ok_status();
  supervisor_ = std::make_unique<Supervisor>(
      std::move(children),
      SupervisorEvents{.starting = [this](const std::string& process, uint64_t n) { child_starts(process, n); },
                       .died = [this](const std::string& process,
                                      const std::string& how) { child_died(process, incarnations_[process], how); },
                       .gave_up = [this](const std::string&) { failed_.store(true); },
                       .had_served = [this](const std::string& process) { return had_served(process); }});
  return ok_status();
}

std::vector<PipelineSeat> PipelineBackend::seats_of(const std::string& process) const {
  const auto found = processes_.find(process);
  return found == processes_.end() ? std::vector<PipelineSeat>{} : found->second;
}

ChildSpec PipelineBackend::child(const std::string& process) {
  std::vector<std::string> stages;
  for (const PipelineSeat& seat : seats_of(process)) stages.push_back(seat.stage);
  const auto arguments = [this, process](uint64_t incarnation) {
    StageOptions stage{.process = process,
                       .run_dir = run_dir_->path(),
                       .incarnation = incarnation,
                       .parent = ::getpid(),
                       .replicas = options_.replicas,
                       .model = options_.model,
                       .pipeline = options_.file,
                       .join = spec_.control,
                       .key_file = spec_.key_file};
    for (const PipelineSeat& seat : seats_of(process)) {
      stage.seats.push_back(fmt::format("{}:{}", seat.stage, seat.replica));
    }
    return stage_arguments(stage);
  };
  return {.name = process, .arguments = arguments, .env = spec_.env_of(stages), .env_defaults = spec_.env_defaults};
}

void PipelineBackend::child_starts(const std::string& process, uint64_t incarnation) {
  incarnations_[process] = incarnation << kIncarnationBits;
  for (const PipelineSeat& seat : seats_of(process)) {
    coordinator_->expect(seat.stage, seat.replica, incarnations_[process]);
  }
}

// It may have lost its lease and taken another since it was started: what counts is the start that a number belongs to.
void PipelineBackend::child_died(const std::string& process, uint64_t incarnation, const std::string& how) {
  const PipelineHealth health = coordinator_->health();
  for (const PipelineSeat& seat : seats_of(process)) {
    for (const wire::StageStatus& status : health.stages) {
      const bool same = status.stage == seat.stage && status.replica == seat.replica;
      if (same && status.incarnation >> kIncarnationBits == incarnation >> kIncarnationBits) {
        coordinator_->down(seat.stage, seat.replica, status.incarnation, how);
      }
    }
  }
}

void PipelineBackend::note_ready(const ReplicaView& lost) {
  const wire::StageState last = lost.status.state;
  if (last != wire::StageState::kReady && last != wire::StageState::kStalled) return;
  std::lock_guard lock(ready_mutex_);
  were_ready_.emplace(lost.stage, lost.replica);
}

bool PipelineBackend::had_served(const std::string& process) const {
  const auto seats = seats_of(process);
  std::lock_guard lock(ready_mutex_);
  return std::all_of(seats.begin(), seats.end(), [this](const PipelineSeat& seat) {
    return were_ready_.contains({seat.stage, seat.replica});
  });
}

void PipelineBackend::start() {
  thread_ = std::thread([this] { coordinator_->run(); });
  if (here_) here_->start();
  if (supervisor_) supervisor_->start();
}

void PipelineBackend::stop() {
  if (std::exchange(stopped_, true) || !coordinator_) return;
  coordinator_->wait_idle(0);
  coordinator_->shut_down(kShutDownMs);
  if (supervisor_) supervisor_->stop(kChildGraceMs);
  if (here_) here_->stop();
  coordinator_->request_stop();
  if (thread_.joinable()) thread_.join();
  if (profile_writer_.joinable()) profile_writer_.join();
  for (auto& [name, relay] : relays_) relay->close();
}

std::string PipelineBackend::awaited_hosts() const {
  return join_commands(spec_, options_.file, options_.model.model.empty() ? "" : " --model DIR");
}

ReqId PipelineBackend::submit(PipelineRequest request, Sink sink) {
  SubmitOptions options{
      .terminals = std::move(request.terminals), .timeout_ms = request.timeout_ms, .later = request.later};
  return coordinator_->submit(std::move(request.inputs), std::move(options),
                              [sink = std::move(sink)](RequestEvent& event) {
                                if (event.kind == RequestEvent::Kind::kAccepted) return SinkAnswer::kTaken;
                                PipelineEvent out{.id = event.id,
                                                  .end = event.kind == RequestEvent::Kind::kEnd,
                                                  .stage = event.stage,
                                                  .modality = event.modality,
                                                  .chunk_id = event.chunk_id,
                                                  .value = std::move(event.value),
                                                  .text = std::move(event.text),
                                                  .status = event.status};
                                if (sink(out)) return SinkAnswer::kTaken;
                                event.value = std::move(out.value);
                                event.text = std::move(out.text);
                                return SinkAnswer::kFull;
                              });
}

// ---- orders

namespace {

wire::AdminReply of_front(const Result<std::string>& answer) {
  return {.stage = std::string(kFrontProcess),
          .code = answer.ok() ? StatusCode::kOk : answer.status().code(),
          .message = answer.ok() ? *answer : answer.status().message()};
}

}  // namespace

// The argument for the stages.
Result<std::string> PipelineBackend::begin_order(wire::AdminAction action) {
  if (action == wire::AdminAction::kStartProfile) return profile_.start();
  if (action == wire::AdminAction::kStopProfile) return profile_.begin_stop();
  return std::string();
}

void PipelineBackend::admin(wire::AdminAction action, int64_t timeout_ms, OrderDone done) {
  Result<std::string> argument = begin_order(action);
  if (!argument.ok()) return done({of_front(argument)});
  PipelineCommand order{.action = action, .argument = std::move(argument).value(), .timeout_ms = timeout_ms};
  coordinator_->admin(std::move(order), [this, action, done](std::vector<wire::AdminReply> replies) {
    if (action == wire::AdminAction::kStopProfile) return end_profile(std::move(replies), done);
    if (action == wire::AdminAction::kStartProfile) {
      replies.insert(replies.begin(), of_front(std::string("recording")));
    }
    done(std::move(replies));
  });
}

// Files are written aside: the pipeline goes on meanwhile.
void PipelineBackend::end_profile(std::vector<wire::AdminReply> replies, OrderDone done) {
  std::lock_guard lock(writer_mutex_);
  if (profile_writer_.joinable()) profile_writer_.join();
  profile_writer_ = std::thread([this, replies = std::move(replies), done = std::move(done)]() mutable {
    replies.insert(replies.begin(), of_front(profile_.finish()));
    done(std::move(replies));
  });
}

Health PipelineBackend::health() const {
  PipelineHealth health = coordinator_->health();
  return {.ready = health.ready,
          .draining = health.draining,
          .reason = std::move(health.reason),
          .stages = std::move(health.stages)};
}

std::vector<MetricSample> PipelineBackend::samples() const {
  const CoordinatorBooks books = coordinator_->books();
  std::vector<MetricSample> out;
  const auto add = [&out](const char* name, const char* help, auto value, MetricLabels labels = {}) {
    out.push_back({name, help, std::move(labels), static_cast<double>(value)});
  };
  const auto ended = [&add](const char* state, uint64_t count) {
    add("pipeline_requests_total", "Requests that have ended, by how.", count, {{"state", state}});
  };
  ended("completed", books.completed), ended("failed", books.failed), ended("aborted", books.aborted);
  ended("refused", books.refused);
  add("live_requests", "Requests under way.", books.live);
  add("pipeline_open_aborts", "Aborts that some stage has not acknowledged.", books.open_aborts);
  add("pipeline_client_chunks", "Pieces of answers that wait for their clients.", books.queued_chunks);
  add("pipeline_client_bytes", "Their bytes.", books.queued_bytes);
  add("pipeline_fetches", "Payloads on their way to the coordinator.", books.fetches);
  const auto ignored = [&add](const char* why, uint64_t count) {
    add("pipeline_news_ignored_total", "Messages to the coordinator that changed nothing.", count, {{"why", why}});
  };
  ignored("late", books.late), ignored("repeated", books.repeated), ignored("unexpected", books.ignored);
  ignored("fenced", books.fenced), ignored("unknown", books.unknown);
  for (const auto& [name, relay] : relays_) {
    const RelayBooks of = relay->books();
    add("pipeline_relay_puts", "Payloads that the coordinator offers.", of.puts, {{"relay", name}});
    add("pipeline_relay_held_bytes", "Bytes that the coordinator's relays hold.", of.held_bytes, {{"relay", name}});
  }
  return out;
}

}  // namespace millrace
