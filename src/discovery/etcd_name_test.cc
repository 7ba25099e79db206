#include "discovery/etcd_name.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

std::string why_not(const std::string& text) {
  const auto name = parse_etcd_name(text);
  return name.ok() ? "" : name.status().message();
}

TEST(EtcdName, MembersAndKey) {
  const auto name = parse_etcd_name("etcd://10.0.0.1:2379,[::1]:2380,etcd.example:1/team/omni-2");
  ASSERT_TRUE(name.ok()) << name.status().message();
  EXPECT_EQ(name->members,
            (std::vector<std::string>{"http://10.0.0.1:2379", "http://[::1]:2380", "http://etcd.example:1"}));
  EXPECT_EQ(name->coordinator_key(), "millrace/team/omni-2/coordinator");
  EXPECT_EQ(parse_etcd_name("etcds://a:1/b")->members.front(), "https://a:1");
  EXPECT_TRUE(is_etcd_name("etcds://a:1/b"));
  EXPECT_FALSE(is_etcd_name("10.0.0.1:30100"));
}

TEST(EtcdName, WhatIsNoneIsRefusedByItsPart) {
  EXPECT_NE(why_not("http://a:1/b").find("etcd:// or etcds://"), std::string::npos);
  for (const char* text : {"etcd://a:1", "etcd://a:1/", "etcd://a:1/b c", "etcd://a:1/\xc3\xbc"}) {
    EXPECT_NE(why_not(text).find("wanted 1 to 128 letters"), std::string::npos) << text;
  }
  EXPECT_NE(why_not("etcd://a:1/" + std::string(129, 'x')).find("wanted 1 to 128 letters"), std::string::npos);
  for (const char* text : {"etcd:///b", "etcd://a/b", "etcd://:1/b", "etcd://a:/b", "etcd://a:0/b", "etcd://a:65536/b",
                           "etcd://a:1x/b", "etcd://a:1,/b", "etcd://a b:1/b", "etcd://a?:1/b"}) {
    EXPECT_NE(why_not(text).find("wanted HOST:PORT"), std::string::npos) << text << ": " << why_not(text);
  }
  EXPECT_NE(why_not("etcd://u:p@a:1/b").find("--discovery-user-file"), std::string::npos);
  EXPECT_NE(why_not("etcd://a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9/b").find("wanted at most 8"), std::string::npos);
}

TEST(EtcdName, AUserHasAPasswordThatNoMessageShows) {
  EtcdName name;
  ASSERT_TRUE(set_etcd_user("millrace:a:b c", name).ok());
  EXPECT_EQ(name.user, "millrace");
  EXPECT_EQ(name.password, "a:b c");
  for (const std::string& text : {std::string("hidden"), std::string(":hidden"), std::string("hidden:"), std::string(),
                                  std::string("hidden:\nx"), "hidden:" + std::string(1024, 'x')}) {
    const Status status = set_etcd_user(text, name);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().find("hidden"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace millrace
