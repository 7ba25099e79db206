// FrontHarness: a front between a fake scheduler and whoever plays the detokenizer, with clients that remember all they
// hear. For tests only. Thread safety: the fakes lock; the harness belongs to the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "stages/front.h"

namespace millrace::testing {

inline constexpr uint64_t kIncarnation = 3;
inline constexpr int32_t kContext = 16;
inline constexpr int32_t kVocabulary = 500;

// What reaches the scheduler, in order; full on demand.
class FakeScheduler : public Outbox {
 public:
  Status send(wire::Message& message) override {
    std::lock_guard lock(mutex_);
    if (full_) return Status(StatusCode::kResourceExhausted, "the scheduler's inbox is full");
    if (const auto* abort = std::get_if<wire::AbortRequest>(&message)) {
      aborts_.push_back(abort->id);
    } else if (const auto* order = std::get_if<wire::AdminRequest>(&message)) {
      orders_.push_back(*order);
    } else {
      auto& request = std::get<wire::TokenizedRequest>(message);
      if (std::find(aborts_.begin(), aborts_.end(), request.id) != aborts_.end()) ++after_abort_;
      requests_.push_back(std::move(request));
    }
    return ok_status();
  }
  void set_full(bool full) {
    std::lock_guard lock(mutex_);
    full_ = full;
  }
  std::vector<wire::TokenizedRequest> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  std::vector<wire::AdminRequest> orders() const {
    std::lock_guard lock(mutex_);
    return orders_;
  }
  std::vector<ReqId> aborts() const {
    std::lock_guard lock(mutex_);
    return aborts_;
  }
  std::size_t request_count() const {
    std::lock_guard lock(mutex_);
    return requests_.size();
  }
  ReqId request_id(std::size_t index) const {
    std::lock_guard lock(mutex_);
    return requests_[index].id;
  }
  int after_abort() const {
    std::lock_guard lock(mutex_);
    return after_abort_;
  }

 private:
  mutable std::mutex mutex_;
  bool full_ = false;
  int after_abort_ = 0;  // requests that came after their own abort: they would run for ever
  std::vector<wire::TokenizedRequest> requests_;
  std::vector<ReqId> aborts_;
  std::vector<wire::AdminRequest> orders_;
};

// What one client hears. Shared with the sink, which may outlive the request.
struct Heard {
  std::mutex mutex;
  std::string text;
  int accepted = 0;
  std::vector<wire::Finish> ends;
  int after_end = 0;     // anything said after the end
  int at_once = 0;       // two calls at one time
  bool aborted = false;  // abort() has returned
  int after_abort = 0;   // anything said after that
  std::atomic<bool> inside{false};
};

inline Engine::Sink sink_of(std::shared_ptr<Heard> heard) {
  return [heard](const wire::TextDelta& delta) {
    if (heard->inside.exchange(true)) ++heard->at_once;
    {
      std::lock_guard lock(heard->mutex);
      if (!heard->ends.empty()) ++heard->after_end;
      if (heard->aborted) ++heard->after_abort;
      heard->accepted += delta.accepted ? 1 : 0;
      heard->text += delta.text;
      if (delta.finish) heard->ends.push_back(*delta.finish);
    }
    heard->inside.store(false);
  };
}

template <typename Condition>
bool eventually(Condition condition, int timeout_ms = 5000) {
  const int64_t end_ms = monotonic_ms() + timeout_ms;
  while (!condition()) {
    if (monotonic_ms() > end_ms) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class FrontHarness : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }

  void start(FrontOptions options = {}, bool ready = true) {
    auto loaded = Tokenizer::load(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/tokenizer/bytes500");
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_ = std::make_unique<TokenizerStage>(*loaded, std::nullopt, 1000);
    ModelFacts model;
    model.name = "test";
    model.context_length = kContext;
    model.vocab_size = kVocabulary;
    LocalMailbox box = make_local_mailbox();
    inbox_ = box.outbox;
    front_ = std::make_unique<Front>(options, model, *tokenizer_, std::move(box.inbox));
    front_->connect_scheduler(scheduler_, kIncarnation);
    front_->expect_stage("detokenizer", kIncarnation);
    threads_.emplace_back([this] { tokenizer_->run(); });
    threads_.emplace_back([this] { front_->run(); });
    if (ready) become_ready();
  }
  void TearDown() override {
    if (!front_) return;
    tokenizer_->request_stop();
    front_->request_stop();
    tokenizer_->close();
    for (std::thread& thread : threads_) thread.join();
  }

  void beat(const std::string& stage, wire::StageState state, uint64_t incarnation, std::string message = "") {
    wire::StageStatus status;
    status.stage = stage;
    status.state = state;
    status.incarnation = incarnation;
    status.message = std::move(message);
    status.progress = 0.4;
    wire::Message out = std::move(status);
    ASSERT_TRUE(inbox_->send(out).ok());
  }
  void become_ready() {
    beat("scheduler", wire::StageState::kReady, kIncarnation);
    beat("detokenizer", wire::StageState::kReady, kIncarnation);
    ASSERT_TRUE(eventually([&] { return front_->health().ready; })) << front_->health().reason;
  }
  void deliver(wire::TextDelta delta) {
    wire::TextBatch batch;
    batch.deltas.push_back(std::move(delta));
    wire::Message out = std::move(batch);
    ASSERT_TRUE(inbox_->send(out).ok());
  }
  static GenerateRequest request(int32_t prompt_tokens, std::optional<int32_t> max_tokens = std::nullopt) {
    GenerateRequest out;
    out.prompt = TokenPrompt{std::vector<int32_t>(static_cast<std::size_t>(prompt_tokens), 257)};
    out.max_tokens = max_tokens;
    return out;
  }
  // Submits and waits for the one end.
  wire::Finish end_of(GenerateRequest request) {
    auto heard = std::make_shared<Heard>();
    front_->submit(std::move(request), sink_of(heard));
    EXPECT_TRUE(eventually([&] { return ended(*heard); }));
    std::lock_guard lock(heard->mutex);
    return heard->ends.empty() ? wire::Finish{} : heard->ends[0];
  }
  static bool ended(Heard& heard) {
    std::lock_guard lock(heard.mutex);
    return !heard.ends.empty();
  }
  static wire::Finish first_end(Heard& heard) {
    std::lock_guard lock(heard.mutex);
    return heard.ends.at(0);
  }
  // Submits one that reaches the scheduler.
  ReqId running(std::shared_ptr<Heard> heard) {
    const std::size_t before = scheduler_->request_count();
    const ReqId id = front_->submit(request(2), sink_of(std::move(heard)));
    EXPECT_TRUE(eventually([&] { return scheduler_->request_count() > before; }));
    return id;
  }

  std::shared_ptr<FakeScheduler> scheduler_ = std::make_shared<FakeScheduler>();
  std::unique_ptr<TokenizerStage> tokenizer_;
  std::unique_ptr<Front> front_;
  std::shared_ptr<Outbox> inbox_;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::testing
