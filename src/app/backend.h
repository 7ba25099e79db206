// Backend: the stages behind the HTTP server, running where the text plan puts them: as threads of this process, their
// messages moving by reference, in supervised child processes joined by ZeroMQ, or on other hosts, which join by tcp
// (app/text_leader.h). The stages are the same.
//
// Of a pipeline over several hosts, the child processes join as the other hosts' do (app/text_host.h): everybody learns
// from the leader where the others are.
//
// Owned by serve. Thread safety: everything from the main thread; front() may be used from any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/loading.h"
#include "app/pipeline_place.h"
#include "app/text_leader.h"
#include "app/text_link.h"
#include "app/text_plan.h"
#include "base/status.h"
#include "control/zmq_mailbox.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"
#include "stages/detokenizer_stage.h"
#include "stages/front.h"
#include "stages/scheduler_stage.h"
#include "stages/tokenizer_stage.h"

namespace millrace {

class Backend {
 public:
  // `options.pipeline` is given to child processes that read it again.
  static Result<std::unique_ptr<Backend>> make(const ServeOptions& options, TextSide& side, PipelineSpec spec,
                                               TextPlan plan);
  ~Backend();

  void start();
  // Ends the stages and waits for them. Live requests have been ended before.
  void stop();
  // True once the model turned out to be unusable: its error was printed, and nothing will ever be served.
  bool failed() const { return failed_.load(); }
  Front& front() { return *front_; }
  // The folder of this instance; empty: it has none.
  std::string run_dir() const { return run_dir_ ? run_dir_->path() : ""; }
  // What a person should start elsewhere; empty: nothing.
  std::string awaited_hosts() const;

 private:
  Backend(const ServeOptions& options, TextSide& side, PipelineSpec spec, TextPlan plan);
  Status open();
  Status open_detokenizer();
  Status open_detokenizer_over_hosts();
  Status open_leader();
  void open_supervisor();
  void joined(const TextSeat& seat, uint64_t incarnation, const std::shared_ptr<Outbox>& outbox);
  void lost(const TextSeat& seat, const std::string& why);
  void hangs(const std::string& stage, uint64_t incarnation, const std::string& how);
  Status open_scheduler(const TextSeat& seat);
  void make_front(std::unique_ptr<Inbox> inbox);
  ChildSpec child(const std::string& process);
  StageOptions child_options(const std::string& process, uint64_t incarnation) const;
  void child_starts(const std::string& process, uint64_t incarnation);
  void child_died(const std::string& process, const std::string& how);
  bool had_served(const std::string& process) const;

  const ServeOptions options_;
  TextSide& side_;
  const PipelineSpec spec_;
  const TextPlan plan_;
  ZmqContext zmq_;                                // outlives the sockets of everything below
  std::unique_ptr<RunDir> run_dir_;               // where there are children and all stages are on this host
  std::optional<PipelinePlace> place_;            // where there are other hosts
  wire::Peer self_;                               // likewise: what stages of other processes speak to
  std::shared_ptr<TextLink> link_;                // likewise: of the schedulers here
  std::map<std::string, uint64_t> incarnations_;  // of the children; the supervisor's thread
  TokenizerStage tokenizer_;
  std::unique_ptr<Front> front_;
  std::unique_ptr<DetokenizerStage> detokenizer_;            // where it is here
  std::shared_ptr<Outbox> to_detokenizer_;                   // of the schedulers here
  std::vector<std::unique_ptr<SchedulerStage>> schedulers_;  // those here
  std::unique_ptr<TextLeader> leader_;                       // where there are other hosts
  std::unique_ptr<Supervisor> supervisor_;                   // where there are children
  std::vector<std::thread> scheduler_threads_;
  std::thread tokenizer_thread_, front_thread_, detokenizer_thread_;
  std::atomic<bool> failed_{false};
};

// The name of the socket of one incarnation of a scheduler: what was meant for a dead one never reaches the next.
std::string scheduler_socket(int replica, uint64_t incarnation);

// A scheduler stage. `share`: what of the machine is its (share_of). `zmq`: for its KV events, where the options ask
// for them.
Result<std::unique_ptr<SchedulerStage>> make_scheduler_stage(const ModelOptions& share, const SchedulerSeat& seat,
                                                             std::vector<int32_t> eos_token_ids, ZmqContext& zmq,
                                                             std::unique_ptr<Inbox> inbox,
                                                             std::shared_ptr<Outbox> detokenizer, uint64_t incarnation);

// kExitBadInput for what another start will not mend; 1 for what may pass, as a want of memory does.
int exit_code_of(const Status& status);

// The one line that a user sees when a start fails: "millrace: error: ...".
void print_error(const Status& status);

}  // namespace millrace
