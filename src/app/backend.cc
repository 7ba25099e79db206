#include "app/backend.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "control/mailbox.h"

namespace millrace {
namespace {

constexpr uint64_t kOnlyIncarnation = 1;  // of a stage that is a thread of this process
constexpr int kBeforeQueue = 1024;  // requests that may be in the tokenizer or on their way to the scheduler's queue

std::string default_profile_folder() {
  const char* root = std::getenv("TMPDIR");
  return fmt::format("{}/millrace-profiles-{}", root != nullptr && *root != '\0' ? root : "/tmp", ::geteuid());
}

}  // namespace

Backend::Backend(const ServeOptions& options, TextSide& side, TextPlan plan)
    : options_(options),
      side_(side),
      plan_(std::move(plan)),
      tokenizer_(side.tokenizer, side.chat_template, side.max_prompt_bytes) {}

Result<std::unique_ptr<Backend>> Backend::make(const ServeOptions& options, TextSide& side, TextPlan plan) {
  std::unique_ptr<Backend> backend(new Backend(options, side, std::move(plan)));
  RETURN_IF_ERROR(backend->open());
  return backend;
}

Backend::~Backend() { stop(); }

// From the front backwards, since each stage needs the door to the next one.
Status Backend::open() {
  const std::vector<std::string> processes = plan_.children();
  if (!processes.empty()) {
    ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
    run_dir_ = std::make_unique<RunDir>(std::move(run_dir));
  }
  RETURN_IF_ERROR(open_detokenizer());
  for (const TextSeat& seat : plan_.seats) {
    if (seat.scheduler && seat.here()) RETURN_IF_ERROR(open_scheduler(seat));
  }
  if (processes.empty()) return ok_status();
  std::vector<ChildSpec> children;
  for (const std::string& process : processes) children.push_back(child(process));
  supervisor_ = std::make_unique<Supervisor>(
      std::move(children),
      SupervisorEvents{.starting = [this](const std::string& process, uint64_t n) { child_starts(process, n); },
                       .died = [this](const std::string& process, const std::string& how) { child_died(process, how); },
                       .gave_up = [this](const std::string&) { failed_.store(true); }});
  front_->on_hung([this](const std::string& stage, const std::string&) {
    for (const TextSeat& seat : plan_.seats) {
      if (seat.name == stage) supervisor_->kill_hung(seat.process);
    }
  });
  return ok_status();
}

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
  ASSIGN_OR_RETURN(auto stage,
                   make_scheduler_stage(options_.model, seat.replica, plan_.schedulers(), side_.eos_token_ids, zmq_,
                                        std::move(box.inbox), to_detokenizer_, kOnlyIncarnation));
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
  front.profile_folder = options_.profile_dir.empty() ? default_profile_folder() : options_.profile_dir;
  front_ = std::make_unique<Front>(std::move(front), side_.facts, tokenizer_, std::move(inbox));
}

ChildSpec Backend::child(const std::string& process) {
  return {process, [this, process](uint64_t incarnation) {
            StageOptions stage{.process = process,
                               .run_dir = run_dir_->path(),
                               .incarnation = incarnation,
                               .parent = ::getpid(),
                               .eos_token_ids = side_.eos_token_ids,
                               .replicas = plan_.schedulers(),
                               .model = options_.model};
            for (const TextSeat& seat : plan_.seats_of(process)) {
              stage.seats.push_back(seat.scheduler ? fmt::format("scheduler:{}", seat.replica) : "detokenizer");
            }
            return stage_arguments(stage);
          }};
}

// A scheduler is reached at an address of its own incarnation: what was meant for a dead one never reaches the next.
void Backend::child_starts(const std::string& process, uint64_t incarnation) {
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
  for (const TextSeat& seat : plan_.seats_of(process)) front_->stage_down(seat.name, how);
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
  if (supervisor_) supervisor_->start();
}

// In the order of the flow, so that each stage's last words still find a reader.
void Backend::stop() {
  if (supervisor_) supervisor_->stop(kChildGraceMs);
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

Result<std::unique_ptr<SchedulerStage>> make_scheduler_stage(const ModelOptions& options, int replica, int replicas,
                                                             std::vector<int32_t> eos_token_ids, ZmqContext& zmq,
                                                             std::unique_ptr<Inbox> inbox,
                                                             std::shared_ptr<Outbox> detokenizer,
                                                             uint64_t incarnation) {
  const ModelOptions share = share_of(options, replica, replicas);
  const SchedulerSeat seat{.name = replica_name(replica, replicas), .replica = static_cast<uint32_t>(replica)};
  auto stage =
      std::make_unique<SchedulerStage>(scheduler_options(share, std::move(eos_token_ids)), make_load_runner(share),
                                       std::move(inbox), std::move(detokenizer), incarnation, seat);
  if (!share.kv_events.empty()) {
    ASSIGN_OR_RETURN(auto socket, EventSocket::bind(zmq, share.kv_events, share.kv_events_anywhere));
    stage->publish_events(std::make_unique<KvEventFeed>(std::move(socket), seat.replica));
  }
  return stage;
}

void print_error(const Status& status) {
  std::fprintf(stderr, "millrace: error: %s\n", status.message().c_str());
  std::fflush(stderr);
}

}  // namespace millrace
