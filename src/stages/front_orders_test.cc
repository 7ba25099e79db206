// Orders of the operator through the front: one answer of each scheduler, whatever becomes of it; profiles as one file.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/trace.h"
#include "stages/testing/front_harness.h"

namespace millrace {
namespace {

using testing::eventually;
using testing::kIncarnation;
using wire::AdminAction;
using wire::StageState;

class FrontOrdersTest : public testing::FrontHarness {
 protected:
  struct Answer {
    std::mutex mutex;
    int calls = 0;
    std::thread::id thread;
    std::vector<wire::AdminReply> replies;
  };

  void SetUp() override {
    std::string path = ::testing::TempDir() + "/profiles-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    FrontOptions options;
    options.profile_folder = folder_ + "/made";
    start(options);
  }
  void TearDown() override {
    FrontHarness::TearDown();
    std::filesystem::remove_all(folder_);
  }

  std::shared_ptr<Answer> order(AdminAction action, int64_t timeout_ms = 0) {
    auto answer = std::make_shared<Answer>();
    front_->admin(action, "/somewhere/else", timeout_ms, [answer](std::vector<wire::AdminReply> replies) {
      std::lock_guard lock(answer->mutex);
      ++answer->calls;
      answer->thread = std::this_thread::get_id();
      answer->replies = std::move(replies);
    });
    return answer;
  }
  static bool answered(Answer& answer) {
    std::lock_guard lock(answer.mutex);
    return answer.calls > 0;
  }
  // The replies, once there are any.
  static std::vector<wire::AdminReply> replies(Answer& answer, int timeout_ms = 5000) {
    EXPECT_TRUE(eventually([&] { return answered(answer); }, timeout_ms));
    std::lock_guard lock(answer.mutex);
    EXPECT_EQ(answer.calls, 1);
    EXPECT_NE(answer.thread, std::this_thread::get_id());
    return answer.replies;
  }
  // The scheduler answers its newest order.
  void reply(StatusCode code = StatusCode::kOk, const std::string& stage = "scheduler") {
    wire::Message message =
        wire::AdminReply{.id = scheduler_->orders().back().id, .stage = stage, .code = code, .message = "said"};
    ASSERT_TRUE(inbox_->send(message).ok());
  }

  std::string folder_;
};

TEST_F(FrontOrdersTest, AnOrderReachesTheSchedulerAndItsReplyComesBack) {
  auto answer = order(AdminAction::kFlushCache, 1234);
  ASSERT_EQ(scheduler_->orders().size(), 1u);
  EXPECT_EQ(scheduler_->orders()[0].action, AdminAction::kFlushCache);
  EXPECT_EQ(scheduler_->orders()[0].timeout_ms, 1234);
  reply(StatusCode::kOk, "somebody");  // was not asked
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(answered(*answer));
  reply(StatusCode::kConflict);
  const auto all = replies(*answer);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].stage, "scheduler");
  EXPECT_EQ(all[0].code, StatusCode::kConflict);
  EXPECT_EQ(all[0].message, "said");
  reply();  // once more: nobody hears it
}

TEST_F(FrontOrdersTest, ADyingSchedulerAnswersUnavailable) {
  auto answer = order(AdminAction::kFlushCache, 600'000);
  front_->stage_down("scheduler", "killed by signal 9 (KILL)");
  auto all = replies(*answer);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].code, StatusCode::kUnavailable);
  EXPECT_NE(all[0].message.find("KILL"), std::string::npos);
  all = replies(*order(AdminAction::kFlushCache));  // and one that is not there
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].code, StatusCode::kUnavailable);
}

TEST_F(FrontOrdersTest, ASilentSchedulerIsWaitedForSoLongAndNoLonger) {
  auto answer = order(AdminAction::kFlushCache, 0);
  const auto all = replies(*answer, kAdminGraceMs + 5000);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].code, StatusCode::kDeadline);
  EXPECT_EQ(all[0].stage, "scheduler");
}

TEST_F(FrontOrdersTest, SoManyOrdersAndNoMore) {
  std::vector<std::shared_ptr<Answer>> waiting;
  for (int i = 0; i < kMaxPendingOrders; ++i) waiting.push_back(order(AdminAction::kFlushCache, 600'000));
  const auto all = replies(*order(AdminAction::kFlushCache));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].stage, "front");
  EXPECT_EQ(all[0].code, StatusCode::kResourceExhausted);
  front_->stage_down("scheduler", "gone");
  for (auto& answer : waiting) EXPECT_EQ(replies(*answer).size(), 1u);
}

TEST_F(FrontOrdersTest, NothingIsLeftUnansweredAtAStop) {
  auto answer = order(AdminAction::kFlushCache, 600'000);
  front_->request_stop();
  const auto all = replies(*answer);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].code, StatusCode::kUnavailable);
}

TEST_F(FrontOrdersTest, AProfileIsOneFileOfAllProcesses) {
  EXPECT_EQ(replies(*order(AdminAction::kStopProfile))[0].code, StatusCode::kConflict);
  auto started = order(AdminAction::kStartProfile);
  ASSERT_EQ(scheduler_->orders().size(), 1u);
  // The client does not choose where files appear.
  const std::string session = scheduler_->orders()[0].argument;
  EXPECT_EQ(session.rfind(folder_ + "/made/session-", 0), 0u) << session;
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/made").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  reply();
  auto all = replies(*started);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].stage, "front");
  EXPECT_EQ(all[0].code, StatusCode::kOk);
  EXPECT_EQ(replies(*order(AdminAction::kStartProfile))[0].code, StatusCode::kConflict);
  ASSERT_EQ(scheduler_->orders().size(), 1u);

  auto stopped = order(AdminAction::kStopProfile);
  EXPECT_EQ(replies(*order(AdminAction::kStopProfile))[0].code, StatusCode::kConflict);
  ASSERT_EQ(scheduler_->orders().size(), 2u);
  EXPECT_EQ(scheduler_->orders()[1].argument, session);
  // What a scheduler's process writes.
  std::ofstream(session + "/1.json") << "{\"traceEvents\":[\n{\"name\":\"from elsewhere\",\"ph\":\"X\"}\n]}\n";
  reply();
  all = replies(*stopped);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].stage, "front");
  ASSERT_EQ(all[0].code, StatusCode::kOk) << all[0].message;
  std::stringstream text;
  text << std::ifstream(all[0].message).rdbuf();
  EXPECT_NE(text.str().find("from elsewhere"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("process_name"), std::string::npos) << text.str();
  EXPECT_FALSE(std::filesystem::exists(session));
  EXPECT_FALSE(trace::recording());

  // And again: one profile after the other.
  auto next = order(AdminAction::kStartProfile);
  reply();
  EXPECT_EQ(replies(*next)[0].code, StatusCode::kOk);
  auto end = order(AdminAction::kStopProfile);
  reply();
  EXPECT_EQ(replies(*end)[0].code, StatusCode::kOk);
}

TEST_F(FrontOrdersTest, AFolderThatOthersMayWriteToIsRefused) {
  std::filesystem::create_directory(folder_ + "/made");
  ASSERT_EQ(::chmod((folder_ + "/made").c_str(), 0777), 0);
  const auto all = replies(*order(AdminAction::kStartProfile));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].code, StatusCode::kPermissionDenied);
  EXPECT_TRUE(scheduler_->orders().empty());
  EXPECT_FALSE(trace::recording());
}

}  // namespace
}  // namespace millrace
