// --placement processes: the front stays here; scheduler and detokenizer are child processes, joined by ZeroMQ and
// supervised.
#include <unistd.h>

#include "app/backend.h"
#include "base/log.h"
#include "control/zmq_mailbox.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr int kChildGraceMs = 2000;  // from SIGTERM to SIGKILL

class ProcessBackend : public Backend {
 public:
  ProcessBackend(const ServeOptions& options, TextSide& side, RunDir run_dir)
      : Backend(options, side), run_dir_(std::move(run_dir)) {}
  // The front holds sockets of zmq_, which waits for them when it ends.
  ~ProcessBackend() override {
    stop();
    front_.reset();
  }

  Status open() {
    ASSIGN_OR_RETURN(auto inbox, bind_inbox(zmq_, run_dir_.endpoint("front")));
    make_front(std::move(inbox));
    return ok_status();
  }

  void start() override {
    start_front();
    supervisor_.start();
  }

  void stop() override {
    supervisor_.stop(kChildGraceMs);
    if (front_) stop_front();
  }

 private:
  ChildSpec child(const std::string& stage) {
    return {stage, [this, stage](uint64_t incarnation) {
              return stage_arguments({.stage = stage,
                                      .run_dir = run_dir_.path(),
                                      .incarnation = incarnation,
                                      .parent = ::getpid(),
                                      .eos_token_ids = side_.eos_token_ids,
                                      .model = options_.model});
            }};
  }

  // A scheduler is reached at an address of its own incarnation: what was meant for a dead one never reaches the next.
  void expect(const std::string& stage, uint64_t incarnation) {
    if (stage != "scheduler") return front_->expect_stage(stage, incarnation);
    auto outbox =
        connect_outbox(zmq_, run_dir_.endpoint(fmt::format("scheduler-{}", incarnation)), BeforeConnected::kKeep);
    if (!outbox.ok()) {
      LOG_ERROR("{}", outbox.status().message());
      return;
    }
    front_->connect_scheduler(std::move(outbox).value(), incarnation);
  }

  ZmqContext zmq_;
  RunDir run_dir_;
  Supervisor supervisor_{
      {child("scheduler"), child("detokenizer")},
      {.starting = [this](const std::string& stage, uint64_t n) { expect(stage, n); },
       .died = [this](const std::string& stage, const std::string& how) { front_->stage_down(stage, how); },
       .gave_up = [this](const std::string&) { failed_.store(true); }}};
};

}  // namespace

Result<std::unique_ptr<Backend>> make_process_backend(const ServeOptions& options, TextSide& side) {
  ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
  auto backend = std::make_unique<ProcessBackend>(options, side, std::move(run_dir));
  RETURN_IF_ERROR(backend->open());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace millrace
