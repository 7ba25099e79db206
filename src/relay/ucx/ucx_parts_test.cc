// What needs no UCX library: transports and endpoints.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace millrace::ucx
