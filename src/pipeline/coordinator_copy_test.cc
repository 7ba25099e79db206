// Inputs that are copied into a relay: no other request waits for the copy, and whatever happens meanwhile, the put is
// released.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "pipeline/relay_payloads.h"
#include "pipeline/testing/coordinator_thread_harness.h"

namespace millrace {
namespace {

using testing::kEchoRelay;
using testing::Listener;

// Its puts copy for as long as the test likes, and are open until they are cancelled.
class GateRelay : public Relay {
 public:
  RelayCapabilities capabilities() const override {
    return {.name = kEchoRelay, .same_process = true, .max_put_bytes = 1 << 20};
  }
  std::string address() const override { return "coordinator"; }
  Result<PutTicket> put(PutRequest request) override {
    std::unique_lock lock(mutex_);
    ++copying_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
    RETURN_IF_ERROR(refusal);
    puts_.push_back(std::move(request.done));
    return PutTicket{RelayOp{puts_.size()}, "descriptor"};
  }
  Result<RelayOp> get(GetRequest) override { return Status(StatusCode::kUnsupported, "puts alone"); }
  void cancel(RelayOp op) override {
    std::function<void(const Status&)> done;
    {
      std::lock_guard lock(mutex_);
      done = std::exchange(puts_.at(op.value - 1), nullptr);
    }
    if (done) done(Status(StatusCode::kCancelled, "cancelled"));
  }
  void cleanup(ReqId) override {}
  RelayBooks books() const override { return {}; }
  void close() override {}

  bool wait_copying() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(testing::kWaitMs), [this] { return copying_ > 0; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  Status refusal;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int copying_ = 0;
  bool is_open_ = false;
  std::vector<std::function<void(const Status&)>> puts_;
};

class CoordinatorCopyTest : public testing::CoordinatorThreadHarness {
 protected:
  CoordinatorCopyTest() {
    auto payloads = std::make_unique<RelayPayloads>(wire::Peer{.stage = "coordinator"},
                                                    loop::Relays{{kEchoRelay, relay_}}, "auto", [] {});
    relay_payloads_ = payloads.get();
    payloads_ = std::move(payloads);
  }
  // The client's thread is in the copy when this returns.
  void submit_large(SubmitOptions options = {}) {
    client_ = std::thread([this, options] {
      const SharedTensor tensor{.dtype = DType::kU8, .shape = {4096}, .bytes = SharedBytes::of(std::string(4096, 'x'))};
      core_->submit(Value(tensor), options, large_.sink());
    });
    ASSERT_TRUE(relay_->wait_copying());
  }
  void finish_copy() {
    relay_->open();
    client_.join();
  }
  bool is_all_released() {
    return wait_for([this] { return relay_payloads_->open_puts() == 0 && core_->books().live == 0; });
  }
  void TearDown() override {
    relay_->open();
    if (client_.joinable()) client_.join();
    CoordinatorThreadHarness::TearDown();
  }

  std::shared_ptr<GateRelay> relay_ = std::make_shared<GateRelay>();
  RelayPayloads* relay_payloads_ = nullptr;
  Listener large_;
  std::thread client_;
};

TEST_F(CoordinatorCopyTest, OthersAreServedMeanwhile) {
  submit_large();
  Listener other;
  std::thread second([&] { core_->submit(Value("quick"), {}, other.sink()); });
  EXPECT_TRUE(other.wait_end());
  EXPECT_EQ(other.text, "quick");
  finish_copy();
  second.join();
  EXPECT_TRUE(wait_for([this] { return stage_->tensors.load() == 1; }));
  EXPECT_EQ(relay_payloads_->open_puts(), 1u);
  core_->wait_idle(0);
  ASSERT_TRUE(large_.wait_end());
  EXPECT_TRUE(is_all_released());
}

TEST_F(CoordinatorCopyTest, ItsTimeIsOver) {
  submit_large({.timeout_ms = 20});
  ASSERT_TRUE(large_.wait_end());
  EXPECT_EQ(large_.status.code(), StatusCode::kDeadline);
  finish_copy();
  EXPECT_TRUE(is_all_released());
  EXPECT_EQ(stage_->tensors.load(), 0);
  EXPECT_EQ(large_.ends, 1);
}

TEST_F(CoordinatorCopyTest, TheStageDies) {
  submit_large();
  core_->down("echo", 0, 1, "killed");
  ASSERT_TRUE(large_.wait_end());
  EXPECT_EQ(large_.status.code(), StatusCode::kUnavailable);
  finish_copy();
  EXPECT_TRUE(is_all_released());
  EXPECT_EQ(large_.ends, 1);
}

TEST_F(CoordinatorCopyTest, TheServerShutsDown) {
  submit_large();
  core_->wait_idle(0);
  ASSERT_TRUE(large_.wait_end());
  EXPECT_EQ(large_.status.message(), "the server is shutting down");
  core_->request_stop();
  finish_copy();
  EXPECT_EQ(core_->books().live, 0u);
  EXPECT_EQ(stage_->tensors.load(), 0);
  EXPECT_EQ(large_.ends, 1);
}

TEST_F(CoordinatorCopyTest, TheRelayIsFull) {
  relay_->refusal = Status(StatusCode::kResourceExhausted, "no credits");
  submit_large();
  finish_copy();
  ASSERT_TRUE(large_.wait_end());
  EXPECT_EQ(large_.status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(is_all_released());
}

}  // namespace
}  // namespace millrace
