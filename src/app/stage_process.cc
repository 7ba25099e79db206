// The child processes of `serve` where all of a text pipeline is on one host: their stages speak ipc, and the
// supervisor tells who lives.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "app/backend.h"
#include "app/commands.h"
#include "app/end_watch.h"
#include "app/model_text.h"
#include "app/signals.h"
#include "base/trace.h"
#include "control/zmq_mailbox.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"
#include "stages/detokenizer_stage.h"
#include "stages/scheduler_stage.h"

namespace millrace {
namespace {

// One stage of this process: "scheduler:1" or "detokenizer".
Result<std::unique_ptr<Stage>> make_stage(const StageOptions& o, const std::string& seat, ZmqContext& zmq) {
  const auto endpoint = [&o](const std::string& name) { return RunDir::ipc_endpoint(o.run_dir, name); };
  if (seat.starts_with("scheduler:")) {
    const int replica = std::atoi(seat.c_str() + std::strlen("scheduler:"));
    ASSIGN_OR_RETURN(auto inbox, bind_inbox(zmq, endpoint(scheduler_socket(replica, o.incarnation))));
    ASSIGN_OR_RETURN(auto detokenizer, connect_outbox(zmq, endpoint("detokenizer"), BeforeConnected::kRefuse));
    const SchedulerSeat where{.name = replica_name(replica, o.replicas), .replica = static_cast<uint32_t>(replica)};
    ASSIGN_OR_RETURN(auto stage, make_scheduler_stage(share_of(o.model, replica, o.replicas), where, o.eos_token_ids,
                                                      zmq, std::move(inbox), std::move(detokenizer), o.incarnation));
    return std::unique_ptr<Stage>(std::move(stage));
  }
  ASSIGN_OR_RETURN(auto tokenizer, load_tokenizer(o.model.model));
  ASSIGN_OR_RETURN(auto inbox, bind_inbox(zmq, endpoint("detokenizer")));
  ASSIGN_OR_RETURN(auto front, connect_outbox(zmq, endpoint("front"), BeforeConnected::kRefuse));
  return std::unique_ptr<Stage>(
      std::make_unique<DetokenizerStage>(std::move(tokenizer), std::move(inbox), std::move(front), o.incarnation));
}

using Stages = std::vector<std::unique_ptr<Stage>>;

void request_stop(Stages& stages, EndWatch& end) {
  for (auto& stage : stages) stage->request_stop();
  end.begin(kStopGraceMs);
}

// Each on its own thread, the first on this one. When one ends, so do all: the supervisor starts the whole process
// again.
void run_all(Stages& stages, EndWatch& end) {
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < stages.size(); ++i) {
    threads.emplace_back([&stages, &end, i] {
      stages[i]->run();
      request_stop(stages, end);
    });
  }
  stages[0]->run();
  request_stop(stages, end);
  for (std::thread& thread : threads) thread.join();
}

// Turns SIGTERM, or the parent's death, into request_stop(). SIGTERM is blocked in every thread and waited for here.
class StopWatch {
 public:
  StopWatch(Stages& stages, pid_t parent, const sigset_t& signals, EndWatch& end) {
    thread_ = std::thread([this, &stages, parent, signals, &end] {
      while (!done_.load() && !stop_signal(signals) && parent_alive(parent)) {
      }
      if (!done_.load()) request_stop(stages, end);
    });
  }
  ~StopWatch() {
    done_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace

int run_stage(const StageOptions& options) {
  if (!options.pipeline.empty()) return run_pipeline_stage(options);
  if (options.run_dir.empty() || options.seats.empty()) {
    print_error(invalid_argument("--pipeline is missing; wanted --join ADDRESS:PORT --pipeline FILE --stages a,b"));
    return kExitBadInput;
  }
  log_init(options.process, log_level_of(options.model.log_level));
  trace::name_process(options.process);
  const sigset_t signals = block_child_stop_signal();
  if (!become_child(options.parent).ok()) return 1;
  // A parent that was killed could not remove its folder.
  const auto last_act = [&options] {
    if (!parent_alive(options.parent)) RunDir::remove(options.run_dir);
  };
  int exit_code = 0;
  {
    EndWatch end(last_act);
    ZmqContext zmq;
    Stages stages;
    for (const std::string& seat : options.seats) {
      auto stage = make_stage(options, seat, zmq);
      if (!stage.ok()) {
        print_error(stage.status());
        return exit_code_of(stage.status());
      }
      stages.push_back(std::move(stage).value());
    }
    StopWatch watch(stages, options.parent, signals, end);
    run_all(stages, end);
    for (const auto& stage : stages) {
      const auto* scheduler = dynamic_cast<const SchedulerStage*>(stage.get());
      if (exit_code != 0 || scheduler == nullptr || scheduler->load_status().ok()) continue;
      print_error(scheduler->load_status());
      exit_code = exit_code_of(scheduler->load_status());
    }
  }
  last_act();
  return exit_code;
}

}  // namespace millrace
