// One encoding for all requests of a prompt, answered in their order; none where every request has ended.
#include "stages/prompt_encoding.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace millrace {
namespace {

using Ids = PromptEncoding::Ids;

class PromptEncodingTest : public ::testing::Test {
 protected:
  bool add(int request, std::function<bool()> wanted = {}) {
    return encoding_.add({[this, request](Result<Ids> ids) {
                            answered_.push_back(request);
                            codes_.push_back(ids.status().code());
                            if (ids.ok()) {
                              EXPECT_EQ(*ids, (Ids{1, 2}));
                            }
                          },
                          std::move(wanted)});
  }
  void run() {
    encoding_.run([this] { return ++encoded_, Result<Ids>(Ids{1, 2}); });
  }

  PromptEncoding encoding_;
  std::vector<int> answered_;
  std::vector<StatusCode> codes_;
  int encoded_ = 0;
};

TEST_F(PromptEncodingTest, OneJobAndOneEncodingForAll) {
  EXPECT_TRUE(add(0));
  EXPECT_FALSE(add(1));
  EXPECT_FALSE(add(2));
  run();
  EXPECT_TRUE(add(3));  // the job is over
  run();
  EXPECT_EQ(answered_, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(encoded_, 1);
}

TEST_F(PromptEncodingTest, ARequestThatComesWhileItRunsIsAnsweredByIt) {
  bool queued = true;
  encoding_.add({[&](Result<Ids>) { queued = add(1); }, {}});
  run();
  EXPECT_FALSE(queued);
  EXPECT_EQ(answered_, std::vector<int>{1});
  EXPECT_EQ(encoded_, 1);
}

TEST_F(PromptEncodingTest, EndedRequestsAreNotEncoded) {
  bool wanted = true;
  add(0, [&] { return wanted; });
  wanted = false;
  run();
  EXPECT_EQ(encoded_, 0);
  add(1, [] { return false; });
  add(2, [] { return true; });
  run();
  EXPECT_EQ(encoded_, 1);
  EXPECT_EQ(codes_, (std::vector{StatusCode::kCancelled, StatusCode::kCancelled, StatusCode::kOk}));
}

TEST_F(PromptEncodingTest, ARefusedJobAnswersAllAndACancelledOneThoseBehindIt) {
  add(0), add(1);
  encoding_.refuse(Status(StatusCode::kUnavailable, "stop"));
  EXPECT_EQ(codes_, (std::vector{StatusCode::kUnavailable, StatusCode::kUnavailable}));
  EXPECT_TRUE(add(2));
  add(3);
  const auto later = encoding_.cancel();
  ASSERT_EQ(later.size(), 1u);
  later[0].done(Status(StatusCode::kResourceExhausted, "full"));
  EXPECT_EQ(answered_, (std::vector<int>{0, 1, 3}));
  EXPECT_TRUE(add(4));
  run();
  EXPECT_EQ(encoded_, 1);
}

// Requests from several threads while jobs run on others.
TEST_F(PromptEncodingTest, ConcurrentRequestsAreAnsweredOnceAndEncodedOnce) {
  for (int round = 0; round < 50; ++round) {
    PromptEncoding encoding;
    std::atomic<int> encoded{0}, answered{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          if (!encoding.add({[&](Result<Ids>) { ++answered; }, {}})) continue;
          encoding.run([&] { return ++encoded, Result<Ids>(Ids{1}); });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(answered, 200);
    ASSERT_EQ(encoded, 1);
  }
}

}  // namespace
}  // namespace millrace
