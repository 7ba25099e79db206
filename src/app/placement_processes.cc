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
    front_->on_hung([this](const std::string& stage, const std::string&) { supervisor_.kill_hung(stage); });
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
  ChildSpec child(const std::string& name, const std::string& stage, int replica) {
    return {name, [this, stage, replica](uint64_t incarnation) {
              return stage_arguments({.stage = stage,
                                      .run_dir = run_dir_.path(),
                                      .incarnation = incarnation,
                                      .parent = ::getpid(),
                                      .eos_token_ids = side_.eos_token_ids,
                                      .replica = replica,
                                      .replicas = options_.dp,
                                      .model = options_.model});
            }};
  }

  std::vector<ChildSpec> children() {
    std::vector<ChildSpec> out;
    for (int i = 0; i < options_.dp; ++i) out.push_back(child(replica_name(i, options_.dp), "scheduler", i));
    out.push_back(child("detokenizer", "detokenizer", 0));
    return out;
  }
  int replica_of(const std::string& name) const {
    for (int i = 0; i < options_.dp; ++i) {
      if (name == replica_name(i, options_.dp)) return i;
    }
    return -1;
  }

  // A scheduler is reached at an address of its own incarnation: what was meant for a dead one never reaches the next.
  void expect(const std::string& stage, uint64_t incarnation) {
    const int replica = replica_of(stage);
    if (replica < 0) return front_->expect_stage(stage, incarnation);
    const std::string endpoint = run_dir_.endpoint(scheduler_socket(replica, incarnation));
    auto outbox = connect_outbox(zmq_, endpoint, BeforeConnected::kKeep);
    if (!outbox.ok()) {
      LOG_ERROR("{}", outbox.status().message());
      return;
    }
    front_->connect_scheduler(std::move(outbox).value(), incarnation, replica);
  }

  ZmqContext zmq_;
  RunDir run_dir_;
  Supervisor supervisor_{
      children(),
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
