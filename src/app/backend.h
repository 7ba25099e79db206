// Backend: the stages behind the HTTP server, running. Two placements, the same stages: child processes joined by
// ZeroMQ under a supervisor, or threads of this process joined by mailboxes.
//
// Owned by serve. Thread safety: everything from the main thread; front() may be used from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "app/loading.h"
#include "base/status.h"
#include "control/zmq_mailbox.h"
#include "stages/front.h"
#include "stages/scheduler_stage.h"
#include "stages/tokenizer_stage.h"

namespace millrace {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual void start() = 0;
  // Ends the stages and waits for them. Live requests have been ended before.
  virtual void stop() = 0;
  // True once the model turned out to be unusable: its error was printed, and nothing will ever be served.
  bool failed() const { return failed_.load(); }
  Front& front() { return *front_; }

 protected:
  // The part that both placements share: the tokenizer stage and the front, in this process.
  Backend(const ServeOptions& options, TextSide& side);
  void make_front(std::unique_ptr<Inbox> inbox);
  void start_front();
  void stop_front();

  const ServeOptions options_;
  TextSide& side_;
  TokenizerStage tokenizer_;
  std::unique_ptr<Front> front_;
  std::atomic<bool> failed_{false};

 private:
  std::thread tokenizer_thread_, front_thread_;
};

Result<std::unique_ptr<Backend>> make_single_backend(const ServeOptions& options, TextSide& side);
Result<std::unique_ptr<Backend>> make_process_backend(const ServeOptions& options, TextSide& side);

// The name of the socket of one incarnation of a scheduler: what was meant for a dead one never reaches the next.
std::string scheduler_socket(int replica, uint64_t incarnation);

// A scheduler stage with its share of the machine. `zmq`: for its KV events, where the options ask for them.
Result<std::unique_ptr<SchedulerStage>> make_scheduler_stage(const ModelOptions& options, int replica, int replicas,
                                                             std::vector<int32_t> eos_token_ids, ZmqContext& zmq,
                                                             std::unique_ptr<Inbox> inbox,
                                                             std::shared_ptr<Outbox> detokenizer, uint64_t incarnation);

// The one line that a user sees when a start fails: "millrace: error: ...".
void print_error(const Status& status);

}  // namespace millrace
