// --placement single: every stage is a thread of this process, and messages move by reference.
#include "app/backend.h"
#include "control/mailbox.h"
#include "stages/detokenizer_stage.h"

namespace millrace {
namespace {

constexpr uint64_t kOnlyIncarnation = 1;

class SingleBackend : public Backend {
 public:
  SingleBackend(const ServeOptions& options, TextSide& side) : Backend(options, side) {}
  ~SingleBackend() override { stop(); }

  Status open() {
    LocalMailbox to_front = make_local_mailbox();
    LocalMailbox to_detokenizer = make_local_mailbox();
    detokenizer_ = std::make_unique<DetokenizerStage>(side_.tokenizer, std::move(to_detokenizer.inbox),
                                                      std::move(to_front.outbox), kOnlyIncarnation);
    make_front(std::move(to_front.inbox));
    front_->expect_stage("detokenizer", kOnlyIncarnation);
    for (int i = 0; i < options_.dp; ++i) {
      LocalMailbox box = make_local_mailbox();
      ASSIGN_OR_RETURN(auto stage, make_scheduler_stage(options_.model, i, options_.dp, side_.eos_token_ids, zmq_,
                                                        std::move(box.inbox), to_detokenizer.outbox, kOnlyIncarnation));
      schedulers_.push_back(std::move(stage));
      front_->connect_scheduler(std::move(box.outbox), kOnlyIncarnation, i);
    }
    return ok_status();
  }

  void start() override {
    start_front();
    detokenizer_thread_ = std::thread([this] { detokenizer_->run(); });
    for (auto& scheduler : schedulers_) {
      threads_.emplace_back([this, stage = scheduler.get()] {
        stage->run();
        if (stage->load_status().ok() || failed_.exchange(true)) return;  // said once
        print_error(stage->load_status());
      });
    }
  }

  // In the order of the flow, so that each stage's last words still find a reader.
  void stop() override {
    for (auto& scheduler : schedulers_) scheduler->request_stop();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    detokenizer_->request_stop();
    if (detokenizer_thread_.joinable()) detokenizer_thread_.join();
    stop_front();
  }

 private:
  ZmqContext zmq_;  // of KV events; outlives the stages' sockets
  std::vector<std::unique_ptr<SchedulerStage>> schedulers_;
  std::unique_ptr<DetokenizerStage> detokenizer_;
  std::vector<std::thread> threads_;
  std::thread detokenizer_thread_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_single_backend(const ServeOptions& options, TextSide& side) {
  auto backend = std::make_unique<SingleBackend>(options, side);
  RETURN_IF_ERROR(backend->open());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace millrace
