// What needs no UCX library: transports.
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

}  // namespace
}  // namespace millrace::ucx
