// How long spoken turns are kept, and how many.
#include "api/spoken_turns.h"

#include <gtest/gtest.h>

#include <set>

namespace millrace::api {
namespace {

constexpr int64_t kNow = 1'700'000'000;

TEST(SpokenTurns, ATurnIsFoundUntilItExpires) {
  SpokenTurns turns;
  const std::string id = SpokenTurns::make_id();
  EXPECT_EQ(turns.add(id, "Hello.", kNow), kNow + kSpokenTurnSeconds);
  EXPECT_EQ(turns.find(id, kNow + kSpokenTurnSeconds - 1), "Hello.");
  EXPECT_EQ(turns.find(id, kNow + kSpokenTurnSeconds), std::nullopt);
  EXPECT_EQ(turns.find("audio_0", kNow), std::nullopt);
  EXPECT_EQ(turns.size(), 1u);
  turns.add(SpokenTurns::make_id(), "Later.", kNow + kSpokenTurnSeconds);  // which erases what has expired
  EXPECT_EQ(turns.size(), 1u);
}

TEST(SpokenTurns, TheOldestMakeSpace) {
  SpokenTurns turns;
  for (std::size_t i = 0; i <= kMaxSpokenTurns; ++i) turns.add("audio_" + std::to_string(i), "x", kNow);
  EXPECT_EQ(turns.size(), kMaxSpokenTurns);
  EXPECT_EQ(turns.find("audio_0", kNow), std::nullopt);
  EXPECT_EQ(turns.find("audio_1", kNow), "x");
  turns.add("audio_large", std::string(kMaxSpokenTurnsBytes, 'x'), kNow);
  EXPECT_EQ(turns.size(), 1u);
  EXPECT_TRUE(turns.find("audio_large", kNow).has_value());
  turns.add("audio_larger", std::string(kMaxSpokenTurnsBytes + 1, 'x'), kNow);
  EXPECT_EQ(turns.size(), 0u);
}

TEST(SpokenTurns, IdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(SpokenTurns::make_id());
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ids.begin()->size(), 38u);
}

}  // namespace
}  // namespace millrace::api
