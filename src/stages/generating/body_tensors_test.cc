// A request's body as a source of broadcasts: its bytes in slices, and a file that is another one.
#include "stages/generating/body_tensors.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <cstdlib>
#include <string>

namespace millrace {
namespace {

class BodyTensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < 3'000'000; ++i) bytes_ += static_cast<char>(i % 251);
    const int fd = ::mkstemp(path_.data());
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::write(fd, bytes_.data(), bytes_.size()), static_cast<ssize_t>(bytes_.size()));
    ::close(fd);
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  WeightBody body(std::size_t begin) const {
    return {.path = path_,
            .begin = begin,
            .end = bytes_.size(),
            .checksum = XXH3_64bits(bytes_.data() + begin, bytes_.size() - begin)};
  }
  static Status receive(collective::ProcessGroup& group, uint64_t bytes, std::string& out) {
    return group.receive_broadcast(0, bytes, {collective::Clock::now() + std::chrono::hours(1)},
                                   [&out](std::span<const std::byte> slice) {
                                     out.append(reinterpret_cast<const char*>(slice.data()), slice.size());
                                     return ok_status();
                                   });
  }

  std::string path_ = ::testing::TempDir() + "body-XXXXXX";
  std::string bytes_;
};

TEST_F(BodyTensorsTest, BroadcastsAreItsBytesFromTheBegin) {
  const auto group = open_body_tensors(body(100));
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  std::string out;
  EXPECT_TRUE(receive(**group, 7, out).ok());
  EXPECT_EQ(out, bytes_.substr(100, 7));
  EXPECT_TRUE(receive(**group, bytes_.size() - 107, out).ok());
  EXPECT_EQ(out, bytes_.substr(100));
}

TEST_F(BodyTensorsTest, AnotherFileIsRefused) {
  std::string out;
  WeightBody other = body(100);
  other.checksum ^= 1;
  EXPECT_EQ(receive(**open_body_tensors(other), bytes_.size() - 100, out).code(), StatusCode::kConflict);
  WeightBody longer = body(100);
  longer.end += 1;
  EXPECT_EQ(receive(**open_body_tensors(longer), bytes_.size() - 99, out).code(), StatusCode::kUnavailable);
  EXPECT_EQ(open_body_tensors({.path = path_ + "-none"}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace
