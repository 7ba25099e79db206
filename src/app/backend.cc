#include "app/backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "control/mailbox.h"

namespace millrace {
namespace {

constexpr uint64_t kOnlyIncarnation = 1;  // of a stage that is a thread of this process
constexpr int kBeforeQueue = 1024;  // requests that may be in the tokenizer or on their way to the scheduler's queue

// Heartbeats of stages that are threads of this process, past the detokenizer.
class HearOutbox : public Outbox {
 public:
  explicit HearOutbox(Front& front) : front_(front) {}
  Status send(wire::Message& message) override {
    if (auto* status = std::get_if<wire::StageStatus>(&message)) front_.hear(std::move(*status));
    return ok_status();
  }

 private:
  Front& front_;
};

}  // namespace

Backend::Backend(const ServeOptions& options, TextSide& side, PipelineSpec spec, TextPlan plan)
    : options_(options),
      side_(side),
      spec_(std::move(spec)),
      plan_(std::move(plan)),
      tokenizer_(side.tokenizer, side.chat_template, side.max_prompt_bytes) {}

Result<std::unique_ptr<Backend>> Backend::make(const ServeOptions& options, TextSide& side, PipelineSpec spec,
                                               TextPlan plan) {
  std::unique_ptr<Backend> backend(new Backend(options, side, std::move(spec), std::move(plan)));
  RETURN_IF_ERROR(backend->open());
  return backend;
}

Backend::~Backend() { stop(); }

// From the front backwards, since each stage needs the door to the next one.
Status Backend::open() {
  const bool children = !plan_.children().empty();
  if (plan_.over_hosts()) {
    ASSIGN_OR_RETURN(place_, PipelinePlace::make(spec_, "", ""));
    RETURN_IF_ERROR(open_detokenizer_over_hosts());
    RETURN_IF_ERROR(open_leader());
  } else {
    if (children) {
      ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
      run_dir_ = std::make_unique<RunDir>(std::move(run_dir));
    }
    RETURN_IF_ERROR(open_detokenizer());
  }
  for (const TextSeat& seat : plan_.seats) {
    if (seat.scheduler && seat.here()) RETURN_IF_ERROR(open_scheduler(seat));
  }
  if (children) open_supervisor();
  front_->on_hung(
      [this](const std::string& stage, uint64_t incarnation, const auto& how) { hangs(stage, incarnation, how); });
  return ok_status();
}

void Backend::open_supervisor() {
  std::vector<ChildSpec> children;
  for (const std::string& process : plan_.children()) children.push_back(child(process));
  supervisor_ = std::make_unique<Supervisor>(
      std::move(children),
      SupervisorEvents{.starting = [this](const std::string& process, uint64_t n) { child_starts(process, n); },
                       .died = [this](const std::string& process, const std::string& how) { child_died(process, how); },
                       .gave_up = [this](const std::string&) { failed_.store(true); },
                       .had_served = [this](const std::string& process) { return had_served(process); }});
}

// Killed where it is a child of ours; another host's is given up, and awaited.
void Backend::hangs(const std::string& stage, uint64_t incarnation, const std::string& how) {
  const TextSeat* seat = plan_.find(stage);
  if (seat == nullptr) return;
  if (seat->remote()) return leader_->down(*seat, std::nullopt, how);
  if (supervisor_) supervisor_->kill_hung(seat->process, place_ ? incarnation >> kIncarnationBits : incarnation);
}

// ---- over several hosts

// Where it is a thread of this process, other hosts' schedulers speak to it; else it speaks to the front.
Status Backend::open_detokenizer_over_hosts() {
  const TextSeat& seat = plan_.detokenizer();
  const std::string stage = seat.here() ? seat.stage : kCoordinatorStage;
  ASSIGN_OR_RETURN(auto inbox, bind_inbox(zmq_, place_->inbox(stage, 0, kOnlyIncarnation), place_->key()));
  self_ = place_->self(stage, 0, kOnlyIncarnation);
  self_.endpoint = inbox->endpoint();
  if (!seat.here()) {
    make_front(std::move(inbox));
    to_detokenizer_ = link_ = std::make_shared<TextLink>("", std::make_shared<HearOutbox>(*front_));
    return ok_status();
  }
  LocalMailbox to_front = make_local_mailbox();
  make_front(std::move(to_front.inbox));
  detokenizer_ = std::make_unique<DetokenizerStage>(side_.tokenizer, std::move(inbox), std::move(to_front.outbox),
                                                    kOnlyIncarnation);
  front_->expect_stage("detokenizer", kOnlyIncarnation);
  return ok_status();
}

Status Backend::open_leader() {
  const bool generates =
      std::any_of(plan_.seats.begin(), plan_.seats.end(), [](const auto& s) { return s.scheduler && !s.remote(); });
  ASSIGN_OR_RETURN(const TextIdentity identity, identify(spec_, options_.model, generates));
  TextLeaderEvents events;
  events.joined = [this](const TextSeat& seat, uint64_t n, const auto& outbox) { joined(seat, n, outbox); };
  events.lost = [this](const TextSeat& seat, const std::string& why) { lost(seat, why); };
  events.beat = [this](wire::StageStatus status) { front_->hear(std::move(status)); };
  ASSIGN_OR_RETURN(leader_,
                   TextLeader::make(spec_, plan_, *place_, zmq_, identity, std::move(self_), std::move(events)));
  for (const TextSeat& seat : plan_.seats) {
    if (seat.remote()) front_->await_stage(seat.name, fmt::format("awaited from host '{}'", seat.host));
  }
  return ok_status();
}

std::string Backend::awaited_hosts() const { return join_commands(spec_, options_.pipeline, " --model DIR"); }

void Backend::joined(const TextSeat& seat, uint64_t incarnation, const std::shared_ptr<Outbox>& outbox) {
  if (seat.scheduler) return front_->connect_scheduler(outbox, incarnation, seat.replica);
  if (link_) link_->aim(outbox);
  front_->expect_stage(seat.name, incarnation);
}

void Backend::lost(const TextSeat& seat, const std::string& why) {
  if (!seat.scheduler && link_) link_->aim(nullptr);
  front_->stage_down(seat.name, why);
}

// ---- on this host

// The detokenizer, or the way to it, and the front that it talks to.
Status Backend::open_detokenizer() {
  if (!plan_.detokenizer().here()) {
    ASSIGN_OR_RETURN(auto inbox, bind_inbox(zmq_, run_dir_->endpoint("front")));
    make_front(std::move(inbox));
    ASSIGN_OR_RETURN(to_detokenizer_,
                     connect_outbox(zmq_, run_dir_->endpoint("detokenizer"), BeforeConnected::kRefuse));
    return ok_status();
  }
  LocalMailbox to_front = make_local_mailbox();
  make_front(std::move(to_front.inbox));
  std::unique_ptr<Inbox> inbox;
  if (run_dir_ == nullptr) {
    LocalMailbox box = make_local_mailbox();
    inbox = std::move(box.inbox);
    to_detokenizer_ = std::move(box.outbox);
  } else {
    ASSIGN_OR_RETURN(inbox, bind_inbox(zmq_, run_dir_->endpoint("detokenizer")));
    ASSIGN_OR_RETURN(to_detokenizer_,
                     connect_outbox(zmq_, run_dir_->endpoint("detokenizer"), BeforeConnected::kRefuse));
  }
  detokenizer_ = std::make_unique<DetokenizerStage>(side_.tokenizer, std::move(inbox), std::move(to_front.outbox),
                                                    kOnlyIncarnation);
  front_->expect_stage("detokenizer", kOnlyIncarnation);
  return ok_status();
}

Status Backend::open_scheduler(const TextSeat& seat) {
  LocalMailbox box = make_local_mailbox();
  ASSIGN_OR_RETURN(auto stage, make_scheduler_stage(share_of(options_.model, seat.replica, plan_.schedulers()),
                                                    {.name = seat.name, .replica = static_cast<uint32_t>(seat.replica)},
                                                    side_.eos_token_ids, zmq_, std::move(box.inbox), to_detokenizer_,
                                                    kOnlyIncarnation));
  schedulers_.push_back(std::move(stage));
  front_->connect_scheduler(std::move(box.outbox), kOnlyIncarnation, seat.replica);
  return ok_status();
}

void Backend::make_front(std::unique_ptr<Inbox> inbox) {
  FrontOptions front;
  const int each = options_.model.max_running_requests + options_.model.max_queued_requests;
  front.max_requests = plan_.schedulers() * each + kBeforeQueue;
  front.request_timeout_s = options_.request_timeout_s;
  front.queue_timeout_ms = int64_t{options_.queue_timeout_s} * 1000;
  front.replicas = plan_.schedulers();
  if (const auto policy = parse_replica_policy(options_.dp_policy); policy.ok()) front.replica_policy = *policy;
  front.restart_after_s = options_.stall_restart_s;
  front.profile_folder = options_.profile_dir;
  front_ = std::make_unique<Front>(std::move(front), side_.facts, tokenizer_, std::move(inbox));
}

ChildSpec Backend::child(const std::string& process) {
  std::vector<std::string> stages;
  for (const TextSeat& seat : plan_.seats_of(process)) stages.push_back(seat.stage);
  return {.name = process,
          .arguments = [this,
                        process](uint64_t incarnation) { return stage_arguments(child_options(process, incarnation)); },
          .env = spec_.env_of(stages),
          .env_defaults = spec_.env_defaults};
}

StageOptions Backend::child_options(const std::string& process, uint64_t incarnation) const {
  StageOptions stage{.process = process,
                     .incarnation = incarnation,
                     .parent = ::getpid(),
                     .eos_token_ids = side_.eos_token_ids,
                     .replicas = plan_.schedulers(),
                     .model = options_.model};
  if (place_) {
    stage.pipeline = options_.pipeline;
    stage.join = spec_.control;
    stage.key_file = spec_.key_file;
  } else {
    stage.run_dir = run_dir_->path();
  }
  for (const TextSeat& seat : plan_.seats_of(process)) {
    const std::string name = place_ ? seat.stage : seat.scheduler ? "scheduler" : "detokenizer";
    stage.seats.push_back(fmt::format("{}:{}", name, seat.replica));
  }
  return stage;
}

// A scheduler is reached at an address of its own incarnation: what was meant for a dead one never reaches the next.
void Backend::child_starts(const std::string& process, uint64_t incarnation) {
  if (place_) {
    incarnations_[process] = incarnation << kIncarnationBits;
    for (const TextSeat& seat : plan_.seats_of(process)) {
      leader_->expect(*plan_.find(seat.name), incarnations_[process]);
    }
    return;
  }
  for (const TextSeat& seat : plan_.seats_of(process)) {
    if (!seat.scheduler) {
      front_->expect_stage(seat.name, incarnation);
      continue;
    }
    const std::string endpoint = run_dir_->endpoint(scheduler_socket(seat.replica, incarnation));
    auto outbox = connect_outbox(zmq_, endpoint, BeforeConnected::kKeep);
    if (!outbox.ok()) {
      LOG_ERROR("{}", outbox.status().message());
      continue;
    }
    front_->connect_scheduler(std::move(outbox).value(), incarnation, seat.replica);
  }
}

void Backend::child_died(const std::string& process, const std::string& how) {
  for (const TextSeat& seat : plan_.seats_of(process)) {
    if (place_) {
      leader_->down(*plan_.find(seat.name), incarnations_[process], how);
    } else {
      front_->stage_down(seat.name, how);
    }
  }
}

bool Backend::had_served(const std::string& process) const {
  const auto seats = plan_.seats_of(process);
  return std::all_of(seats.begin(), seats.end(), [this](const TextSeat& seat) { return front_->was_ready(seat.name); });
}

void Backend::start() {
  tokenizer_thread_ = std::thread([this] { tokenizer_.run(); });
  front_thread_ = std::thread([this] { front_->run(); });
  if (detokenizer_) detokenizer_thread_ = std::thread([this] { detokenizer_->run(); });
  for (auto& scheduler : schedulers_) {
    scheduler_threads_.emplace_back([this, stage = scheduler.get()] {
      stage->run();
      if (stage->load_status().ok() || failed_.exchange(true)) return;  // said once
      print_error(stage->load_status());
    });
  }
  if (leader_) leader_->start();
  if (supervisor_) supervisor_->start();
}

// In the order of the flow, so that each stage's last words still find a reader.
void Backend::stop() {
  if (supervisor_) supervisor_->stop(kChildGraceMs);
  if (leader_) leader_->stop();
  for (auto& scheduler : schedulers_) scheduler->request_stop();
  for (std::thread& thread : scheduler_threads_) {
    if (thread.joinable()) thread.join();
  }
  if (detokenizer_) detokenizer_->request_stop();
  if (detokenizer_thread_.joinable()) detokenizer_thread_.join();
  tokenizer_.close();
  tokenizer_.request_stop();
  if (front_) front_->request_stop();
  if (tokenizer_thread_.joinable()) tokenizer_thread_.join();
  if (front_thread_.joinable()) front_thread_.join();
}

std::string scheduler_socket(int replica, uint64_t incarnation) {
  return fmt::format("scheduler-{}-{}", replica, incarnation);
}

Result<std::unique_ptr<SchedulerStage>> make_scheduler_stage(const ModelOptions& share, const SchedulerSeat& seat,
                                                             std::vector<int32_t> eos_token_ids, ZmqContext& zmq,
                                                             std::unique_ptr<Inbox> inbox,
                                                             std::shared_ptr<Outbox> detokenizer,
                                                             uint64_t incarnation) {
  auto stage =
      std::make_unique<SchedulerStage>(scheduler_options(share, std::move(eos_token_ids)), make_load_runner(share),
                                       std::move(inbox), std::move(detokenizer), incarnation, seat);
  if (!share.kv_events.empty()) {
    ASSIGN_OR_RETURN(auto socket, EventSocket::bind(zmq, share.kv_events, share.kv_events_anywhere));
    stage->publish_events(std::make_unique<KvEventFeed>(std::move(socket), seat.replica));
  }
  return stage;
}

int exit_code_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kTooLarge:
    case StatusCode::kUnsupported:
    case StatusCode::kPermissionDenied:
      return kExitBadInput;
    default:
      return 1;
  }
}

void print_error(const Status& status) {
  std::fprintf(stderr, "millrace: error: %s\n", status.message().c_str());
  std::fflush(stderr);
}

}  // namespace millrace
