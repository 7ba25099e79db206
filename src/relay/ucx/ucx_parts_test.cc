// The pieces of the UCX relay that need no UCX: transports, endpoints, frames, cutting and laying out.
#include <gtest/gtest.h>

#include <cstring>

#include "relay/testing/patterns.h"
#include "relay/ucx/frame.h"
#include "relay/ucx/layout.h"
#include "relay/ucx/transports.h"

namespace millrace::ucx {
namespace {

TEST(UcxTransports, OptionBeforeEnvironmentBeforeDefault) {
  const auto by_default = choose_transports("", nullptr, nullptr);
  ASSERT_TRUE(by_default.ok());
  EXPECT_EQ(by_default->tls, "posix,cma,tcp,self");
  EXPECT_EQ(by_default->devices, "lo");
  EXPECT_EQ(by_default->ip, "127.0.0.1:0");
  EXPECT_TRUE(by_default->memory);
  EXPECT_FALSE(by_default->network);
  const auto by_environment = choose_transports("127.0.0.1:0", "tcp,self", "eth7");  // listen is another relay's
  ASSERT_TRUE(by_environment.ok());
  EXPECT_EQ(by_environment->tls, "tcp,self");
  EXPECT_FALSE(by_environment->memory);
  EXPECT_TRUE(by_environment->network);
  const auto by_option = choose_transports("ucx:posix,self@lo", "tcp,self", "eth7");
  ASSERT_TRUE(by_option.ok());
  EXPECT_EQ(by_option->tls, "posix,self,tcp");  // over which connections are made
  EXPECT_EQ(by_option->devices, "lo");
  EXPECT_FALSE(by_option->network);
}

TEST(UcxTransports, ListsThatAreAllOrExclude) {
  EXPECT_TRUE(choose_transports("ucx:all@eth0", nullptr, nullptr)->memory);
  EXPECT_TRUE(choose_transports("ucx:^ib@eth0", nullptr, nullptr)->memory);
  EXPECT_FALSE(choose_transports("ucx:^posix,sysv@lo", nullptr, nullptr)->memory);
  EXPECT_FALSE(choose_transports("ucx:^tcp", nullptr, nullptr).ok());
  for (const char* bad : {"ucx:", "ucx:tcp@", "ucx:a b", "ucx:tcp;x", "ucx:tcp\n", "ucx:@lo"}) {
    EXPECT_EQ(choose_transports(bad, nullptr, nullptr).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(choose_transports("ucx:" + std::string(kMaxTransportsBytes + 1, 'a'), nullptr, nullptr).ok());
}

TEST(UcxTransports, EndpointsThereAndBack) {
  for (const char* text : {"127.0.0.1:1", "10.1.2.3:65535", "[::1]:4711", "[fe80::1]:9"}) {
    const auto address = parse_endpoint(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(endpoint_text(*address), text);
  }
  EXPECT_TRUE(is_loopback(*parse_endpoint("127.9.9.9:1")));
  EXPECT_TRUE(is_loopback(*parse_endpoint("[::1]:1")));
  EXPECT_FALSE(is_loopback(*parse_endpoint("10.0.0.1:1")));
  EXPECT_FALSE(is_loopback(*parse_endpoint("[2001:db8::1]:1")));
  for (const std::string bad : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:1x",
                                "localhost:1", "[]:1", "[::1:1", "::1:1", "[127.0.0.1]:1", "[::1]4:1"}) {
    EXPECT_FALSE(parse_endpoint(bad).ok()) << bad;
  }
  EXPECT_FALSE(parse_endpoint(std::string(5000, '1')).ok());
}

std::span<const std::byte> bytes_of(const Frame& frame) {
  return {reinterpret_cast<const std::byte*>(&frame), sizeof(frame)};
}

TEST(UcxFrame, EveryKindAndItsLimits) {
  struct Row {
    FrameType type;
    std::size_t min, max;
  };
  for (const Row& row :
       {Row{FrameType::kHello, 0, 0}, Row{FrameType::kWelcome, 0, 0}, Row{FrameType::kGet, 0, 0},
        Row{FrameType::kData, 0, 4u << 20}, Row{FrameType::kSlot, 1, 1024}, Row{FrameType::kRefuse, 0, 512},
        Row{FrameType::kRelease, 0, 0}, Row{FrameType::kReleased, 0, 0}, Row{FrameType::kPing, 0, 0},
        Row{FrameType::kPong, 0, 0}, Row{FrameType::kBye, 0, 0}}) {
    Frame frame{.type = row.type};
    if (row.type == FrameType::kRefuse) frame.code = 6;
    for (const std::size_t size : {row.min, row.max}) {
      frame.bytes = static_cast<uint32_t>(size);
      const auto decoded = decode_frame(bytes_of(frame), size);
      ASSERT_TRUE(decoded.has_value()) << static_cast<int>(row.type) << " " << size;
      EXPECT_EQ(std::memcmp(&*decoded, &frame, sizeof(frame)), 0);
      EXPECT_FALSE(decode_frame(bytes_of(frame), size + 1).has_value());  // not what it says
    }
    frame.bytes = static_cast<uint32_t>(row.max + 1);
    EXPECT_FALSE(decode_frame(bytes_of(frame), row.max + 1).has_value());
  }
}

TEST(UcxFrame, WhatIsNotOneIsRefused) {
  const Frame good{.type = FrameType::kPing};
  ASSERT_TRUE(decode_frame(bytes_of(good), 0).has_value());
  EXPECT_FALSE(decode_frame(bytes_of(good).first(sizeof(Frame) - 1), 0).has_value());
  EXPECT_FALSE(decode_frame({}, 0).has_value());
  for (int byte = 0; byte < 6; ++byte) {  // magic, version, type
    Frame frame = good;
    reinterpret_cast<uint8_t*>(&frame)[byte] ^= 0x80;
    EXPECT_FALSE(decode_frame(bytes_of(frame), 0).has_value()) << byte;
  }
  for (const int type : {0, 12, 255}) {
    const Frame frame{.type = static_cast<FrameType>(type)};
    EXPECT_FALSE(decode_frame(bytes_of(frame), 0).has_value()) << type;
  }
  EXPECT_FALSE(decode_frame(bytes_of({.type = FrameType::kPing, .flags = kFlagSum}), 0).has_value());
  EXPECT_FALSE(decode_frame(bytes_of({.type = FrameType::kPing, .code = 1}), 0).has_value());
  EXPECT_FALSE(decode_frame(bytes_of({.type = FrameType::kRelease, .code = 13}), 0).has_value());
  EXPECT_FALSE(decode_frame(bytes_of({.type = FrameType::kRefuse, .code = 0}), 0).has_value());
}

// Every byte of every part is in exactly one segment, in order, and no segment is too large.
TEST(UcxLayout, SegmentsCoverEverythingOnce) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto sizes = relay_testing::random_sizes(seed, 200, seed % 7 == 0 ? 10u << 20 : 40u << 10);
    uint32_t part = 0;
    std::size_t offset = 0;
    for (const Segment& segment : cut(sizes)) {
      ASSERT_EQ(segment.first, part);
      ASSERT_EQ(segment.offset, offset);
      ASSERT_LE(segment.bytes, kSegmentBytes);
      if (segment.count == 1) {
        offset += segment.bytes;
        ASSERT_LE(offset, sizes[part]);
        if (offset == sizes[part]) ++part, offset = 0;
      } else {
        std::size_t sum = 0;
        for (uint32_t i = 0; i < segment.count; ++i) sum += sizes[part + i];
        ASSERT_EQ(segment.bytes, sum);
        ASSERT_LE(sum, kRunBytes);
        part += segment.count;
      }
    }
    ASSERT_EQ(part, sizes.size());
    ASSERT_EQ(offset, 0u);
  }
}

TEST(UcxLayout, PartsAreAlignedAndApart) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto sizes = relay_testing::random_sizes(seed, 50, 1u << 16);
    const Layout layout = lay_out(sizes);
    std::size_t end = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_EQ(layout.offsets[i] % 64, 0u);
      ASSERT_GE(layout.offsets[i], end);
      ASSERT_LT(layout.offsets[i], end + 64);
      end = layout.offsets[i] + sizes[i];
    }
    ASSERT_GE(layout.bytes, end);
    ASSERT_LT(layout.bytes, end + 64);
  }
  EXPECT_EQ(reinterpret_cast<uintptr_t>(allocate(0).get()) % 64, 0u);
  EXPECT_EQ(allocate(std::size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace millrace::ucx
