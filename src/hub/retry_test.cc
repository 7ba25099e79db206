#include "hub/retry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::hub {
namespace {

using std::chrono::milliseconds;

const RetryPolicy kQuick{.attempts = 3, .first_pause = milliseconds(1), .longest_pause = milliseconds(2)};

Status passing() { return Status(StatusCode::kUnavailable, "busy"); }

TEST(HubRetry, AttemptsAreBounded) {
  int calls = 0;
  std::vector<std::string> notes;
  const TransferControl control{.note = [&](const std::string& text) { notes.push_back(text); }};
  const Status status = with_retries(kQuick, control, [&]() -> Attempt { return ++calls, Attempt{passing(), true}; });
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(status.message(), "busy; 3 attempts were made");
  EXPECT_EQ(notes.size(), 2u);
}

TEST(HubRetry, ProgressCountsAnew) {
  int calls = 0;
  const Status status = with_retries(kQuick, {}, [&]() -> Attempt {
    ++calls;
    return {passing(), true, calls == 3};
  });
  EXPECT_EQ(calls, 5);
  EXPECT_FALSE(status.ok());
}

TEST(HubRetry, WhatWouldFailAgainIsNotTried) {
  int calls = 0;
  const Status status = with_retries(kQuick, {}, [&]() -> Attempt {
    return ++calls, Attempt{invalid_argument("no"), false};
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(status.message(), "no");
}

TEST(HubRetry, ALongerPauseThanTheLimitIsAnError) {
  int calls = 0;
  const Status status = with_retries(kQuick, {}, [&]() -> Attempt {
    return ++calls, Attempt{passing(), true, false, 301};
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(status.message(), "busy; it asks to wait 301 s; wanted at most 300 s: try again later");
}

TEST(HubRetry, CancellingEndsAPause) {
  bool cancelled = false;
  const RetryPolicy slow{.first_pause = std::chrono::hours(1)};
  const TransferControl control{.cancelled = [&] { return cancelled; }};
  const Status status = with_retries(slow, control, [&]() -> Attempt {
    return cancelled = true, Attempt{passing(), true};
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace millrace::hub
