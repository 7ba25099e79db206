// --placement single: every stage is a thread of this process, and messages move by reference.
#include "app/backend.h"
#include "control/mailbox.h"
#include "stages/detokenizer_stage.h"
#include "stages/scheduler_stage.h"

namespace millrace {
namespace {

constexpr uint64_t kOnlyIncarnation = 1;

class SingleBackend : public Backend {
 public:
  SingleBackend(const ServeOptions& options, TextSide& side) : Backend(options, side) {
    LocalMailbox to_front = make_local_mailbox();
    LocalMailbox to_scheduler = make_local_mailbox();
    LocalMailbox to_detokenizer = make_local_mailbox();
    scheduler_ = std::make_unique<SchedulerStage>(scheduler_options(options.model, side.eos_token_ids),
                                                  make_load_runner(options.model), std::move(to_scheduler.inbox),
                                                  std::move(to_detokenizer.outbox), kOnlyIncarnation);
    detokenizer_ = std::make_unique<DetokenizerStage>(side.tokenizer, std::move(to_detokenizer.inbox),
                                                      std::move(to_front.outbox), kOnlyIncarnation);
    make_front(std::move(to_front.inbox));
    front_->connect_scheduler(std::move(to_scheduler.outbox), kOnlyIncarnation);
    front_->expect_stage("detokenizer", kOnlyIncarnation);
  }
  ~SingleBackend() override { stop(); }

  void start() override {
    start_front();
    detokenizer_thread_ = std::thread([this] { detokenizer_->run(); });
    scheduler_thread_ = std::thread([this] {
      scheduler_->run();
      if (scheduler_->load_status().ok()) return;
      print_error(scheduler_->load_status());
      failed_.store(true);
    });
  }

  // In the order of the flow, so that each stage's last words still find a reader.
  void stop() override {
    scheduler_->request_stop();
    if (scheduler_thread_.joinable()) scheduler_thread_.join();
    detokenizer_->request_stop();
    if (detokenizer_thread_.joinable()) detokenizer_thread_.join();
    stop_front();
  }

 private:
  std::unique_ptr<SchedulerStage> scheduler_;
  std::unique_ptr<DetokenizerStage> detokenizer_;
  std::thread scheduler_thread_, detokenizer_thread_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_single_backend(const ServeOptions& options, TextSide& side) {
  return std::unique_ptr<Backend>(std::make_unique<SingleBackend>(options, side));
}

}  // namespace millrace
