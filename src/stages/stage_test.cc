// PatientOutbox: what a stage has to say stays in order, stays bounded, and no message blocks those behind it for ever.
#include "stages/stage.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace millrace {
namespace {

wire::Message numbered(uint64_t id) { return wire::AbortRequest{ReqId{id}}; }

// Takes what `answer` allows.
struct MoodyOutbox : Outbox {
  Status send(wire::Message& message) override {
    const uint64_t id = std::get<wire::AbortRequest>(message).id.value;
    if (id == poison) return invalid_argument("message {} cannot be encoded", id);
    if (!answer.ok()) return answer;
    taken.push_back(id);
    return ok_status();
  }
  Status answer;
  uint64_t poison = UINT64_MAX;
  std::vector<uint64_t> taken;
};

class PatientOutboxTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }
  void say(bool full) { moody_->answer = full ? Status(StatusCode::kResourceExhausted, "full") : ok_status(); }
  std::shared_ptr<MoodyOutbox> moody_ = std::make_shared<MoodyOutbox>();
  PatientOutbox outbox_{moody_};
};

TEST_F(PatientOutboxTest, KeepsTheOrderAcrossAFullReceiver) {
  outbox_.send(numbered(1));
  say(true);
  outbox_.send(numbered(2));
  outbox_.send(numbered(3));
  EXPECT_FALSE(outbox_.flush());
  say(false);
  outbox_.send(numbered(4));
  EXPECT_TRUE(outbox_.flush());
  EXPECT_EQ(moody_->taken, (std::vector<uint64_t>{1, 2, 3, 4}));
}

TEST_F(PatientOutboxTest, AnAbsentReceiverIsWaitedFor) {
  moody_->answer = Status(StatusCode::kUnavailable, "nobody there");
  outbox_.send(numbered(1));
  EXPECT_FALSE(outbox_.flush());
  say(false);
  EXPECT_TRUE(outbox_.flush());
  EXPECT_EQ(moody_->taken, (std::vector<uint64_t>{1}));
}

TEST_F(PatientOutboxTest, NewsThatIsRepeatedAnywayDoesNotPileUp) {
  say(true);
  for (uint64_t id = 1; id <= 10 * PatientOutbox::kMaxKept; ++id) outbox_.send_unless_full(numbered(id));
  EXPECT_TRUE(outbox_.full());
  say(false);
  EXPECT_TRUE(outbox_.flush());
  EXPECT_EQ(moody_->taken.size(), PatientOutbox::kMaxKept);
  outbox_.send_unless_full(numbered(0));
  EXPECT_EQ(moody_->taken.back(), 0u);
}

TEST_F(PatientOutboxTest, AMessageThatCanNeverGoDoesNotHoldUpTheRest) {
  moody_->poison = 2;
  for (uint64_t id = 1; id <= 3; ++id) outbox_.send(numbered(id));
  EXPECT_TRUE(outbox_.flush());
  EXPECT_EQ(moody_->taken, (std::vector<uint64_t>{1, 3}));
}

}  // namespace
}  // namespace millrace
