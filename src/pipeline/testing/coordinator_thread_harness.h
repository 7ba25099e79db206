// CoordinatorThreadHarness: a coordinator on its thread, with one stage that answers from another.
//
// For tests only. Thread safety: the test's thread; a Listener from any.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "payload/packing.h"
#include "pipeline/coordinator_thread.h"

namespace millrace::testing {

inline constexpr int kWaitMs = 60'000;  // generous: the machine may be busy

inline PipelineSpec one_stage() {
  PipelineSpec spec{.name = "one", .entry = "echo"};
  spec.stages = {{.name = "echo", .worker = "w", .terminal = true}};
  spec.max_requests = 64;
  return spec;
}

inline const std::string kEchoRelay = "gate";  // that the stage has, if the coordinator has it too

// A stage that answers each word with its letters and the word itself; "never" is never answered.
// Neither are tensors; they are counted.
class EchoStage {
 public:
  EchoStage(std::shared_ptr<Outbox> coordinator, uint64_t spec_hash)
      : coordinator_(std::move(coordinator)), spec_hash_(spec_hash), box_(make_local_mailbox()) {
    thread_ = std::thread([this] { run(); });
  }
  ~EchoStage() {
    stop_.store(true);
    thread_.join();
  }
  std::shared_ptr<Outbox> outbox() const { return box_.outbox; }
  std::atomic<int> aborts{0}, tensors{0};

 private:
  void send(wire::Message message) {
    while (coordinator_->send(message).code() == StatusCode::kResourceExhausted) std::this_thread::yield();
  }
  wire::Payload pack(const std::string& text) { return {.tree = {lift(Value(text))->tree}}; }
  void run() {
    int64_t beat_ms = 0;
    wire::Register self{.reply_to = "echo", .spec_hash = spec_hash_};
    self.self = {.stage = "echo", .incarnation = 1, .endpoint = "echo"};
    self.self.relays = {{kEchoRelay, {"echo"}}};
    send(self);
    while (!stop_.load()) {
      if (monotonic_ms() - beat_ms >= kHeartbeatMs) {
        send(wire::StageStatus{.stage = "echo", .incarnation = 1, .state = wire::StageState::kReady});
        beat_ms = monotonic_ms();
      }
      auto message = box_.inbox->receive(20);
      if (!message) continue;
      if (auto* welcome = std::get_if<wire::Welcome>(&*message)) session_ = welcome->from.session;
      if (auto* abort = std::get_if<wire::AbortRequest>(&*message)) {
        ++aborts;
        send(wire::AbortAck{abort->id, origin()});
      }
      if (auto* command = std::get_if<wire::AdminRequest>(&*message)) send(wire::AdminReply{.id = command->id});
      if (auto* submit = std::get_if<wire::Submit>(&*message)) answer(*submit);
    }
  }
  void answer(const wire::Submit& submit) {
    if (!submit.payload.tensors.empty()) {
      ++tensors;
      return;
    }
    const Value value = *restore(submit.payload.tree.bytes, {}, {});
    const std::string& word = *value.get<std::string>();
    if (word == "never") return;
    wire::ChunkBatch batch{.from = origin()};
    for (std::size_t i = 0; i < word.size(); ++i) {
      batch.chunks.push_back({.id = submit.id, .seq = i, .body = wire::StreamValue{"text", pack(word.substr(i, 1))}});
    }
    batch.chunks.push_back({.id = submit.id, .seq = word.size(), .body = wire::StageResult{pack(word)}});
    send(std::move(batch));
  }
  wire::Origin origin() const { return {.session = session_, .stage = "echo", .incarnation = 1}; }

  std::shared_ptr<Outbox> coordinator_;
  const uint64_t spec_hash_;
  LocalMailbox box_;
  uint64_t session_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class NoTensors : public Payloads {
 public:
  Result<wire::Payload> give(ReqId, const Value& value, const wire::Peer&) override {
    ASSIGN_OR_RETURN(Lifted lifted, lift(value));
    return wire::Payload{.tree = {std::move(lifted.tree)}};
  }
  void take(ReqId, const wire::Payload&, int, Taken done) override {
    done(Status(StatusCode::kUnsupported, "no tensors here"));
  }
  void forget(ReqId) override {}
};

// What one client gets, for the thread that waits.
struct Listener {
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;
  int ends = 0;
  Status status;
  Value result;
  bool takes = true;

  RequestSink sink() {
    return [this](RequestEvent& event) {
      std::lock_guard lock(mutex);
      if (event.is_chunk()) {
        if (!takes) return SinkAnswer::kFull;
        text += *event.value_chunk()->value.get<std::string>();
      }
      if (const auto* end = event.end()) ++ends, status = end->status, result = end->result;
      changed.notify_all();
      return SinkAnswer::kTaken;
    };
  }
  bool wait_end() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::milliseconds(kWaitMs), [this] { return ends > 0; });
  }
};

class CoordinatorThreadHarness : public ::testing::Test, public CoordinatorEnv {
 protected:
  void SetUp() override {
    log_init("test", LogLevel::kError);
    LocalMailbox box = make_local_mailbox();
    outbox_ = box.outbox;
    core_ = std::make_unique<CoordinatorThread>(spec_, library_, CoordinatorOptions{.session = 9}, *this, *payloads_,
                                                std::move(box.inbox));
    stage_ = std::make_unique<EchoStage>(outbox_, spec_.hash());
    stage_outbox_ = stage_->outbox();
    thread_ = std::thread([this] { core_->run(); });
    ASSERT_TRUE(wait_for([this] { return core_->health().ready; }));
  }
  void TearDown() override {
    core_->request_stop();
    thread_.join();
    stage_.reset();
  }
  static bool wait_for(const std::function<bool()>& what) {
    const int64_t end_ms = monotonic_ms() + kWaitMs;
    while (!what() && monotonic_ms() < end_ms) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return what();
  }
  std::shared_ptr<Outbox> open(const std::string&) override { return stage_outbox_; }
  void lost(const ReplicaView&, const std::string&) override { ++lost_replicas_; }

  PipelineSpec spec_ = one_stage();
  Library library_;
  std::unique_ptr<Payloads> payloads_ = std::make_unique<NoTensors>();
  std::shared_ptr<Outbox> outbox_, stage_outbox_;
  std::unique_ptr<EchoStage> stage_;
  std::unique_ptr<CoordinatorThread> core_;
  std::atomic<int> lost_replicas_{0};
  std::thread thread_;
};

}  // namespace millrace::testing
