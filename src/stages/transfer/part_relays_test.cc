// The bytes of parts: through a relay where one reaches the reader, else in the message, and the log has the reason.
#include "stages/transfer/part_relays.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.h"
#include "stages/transfer/part_buffers.h"

namespace millrace::transfer {
namespace {

wire::Peer reader_of(uint32_t replica, uint64_t incarnation = 1) {
  return {.stage = "scheduler", .replica = replica, .incarnation = incarnation};
}

TEST(PartBuffers, WhatNothingHoldsIsUsedAgain) {
  PartBuffers buffers;
  std::shared_ptr<Buffer> first = buffers.take(1000);
  const std::shared_ptr<Buffer> second = buffers.take(1000);
  EXPECT_NE(first->data(), second->data());
  const std::byte* const bytes = first->data();
  first.reset();
  EXPECT_EQ(buffers.take(900)->data(), bytes);
  EXPECT_EQ(buffers.take(1000)->data(), bytes);
  EXPECT_GE(buffers.take(2000)->size_bytes(), 2000u);
}

TEST(PartBuffers, AHolderMayOutliveThem) {
  std::shared_ptr<Buffer> held;
  {
    PartBuffers buffers;
    held = buffers.take(10);
  }
  std::fill_n(held->data(), 10, std::byte{1});
  held.reset();
}

TEST(PartWriter, TheLogHasOnceForEachReaderWhyItGetsMessages) {
  log_init("test", LogLevel::kInfo);
  PartWriter writer({.stage = "prefill"}, {}, "shm");
  const auto offer = [&](const wire::Peer& reader) {
    wire::KvPart part{.id = {"xfer-1"}};
    ASSERT_TRUE(writer.offer(reader, SharedBytes::of("pages"), part).ok());
    EXPECT_EQ(part.bytes.bytes, "pages");
    EXPECT_EQ(part.relay, "");
  };
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) offer(reader_of(0)), offer(reader_of(1));
  offer(reader_of(0, 2));  // started again: perhaps with other relays
  const std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(logged.begin(), logged.end(), '\n'), 3) << logged;
  EXPECT_NE(logged.find("KV pages go to scheduler-1 in messages"), std::string::npos) << logged;
  EXPECT_NE(logged.find("here none, there none; wanted shm in both"), std::string::npos) << logged;
}

}  // namespace
}  // namespace millrace::transfer
