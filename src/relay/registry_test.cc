// The registry: every name is listed, with a reason where it is absent, and can be made where it is not.
#include "relay/registry.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace {
namespace {

TEST(Registry, ListsEveryRelayWithAReasonWhereItIsAbsent) {
  const std::vector<RelayInfo> list = list_relays();
  ASSERT_EQ(list.size(), relay_names().size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(list[i].name, relay_names()[i]);
    EXPECT_EQ(list[i].available, list[i].reason.empty()) << list[i].name << ": " << list[i].reason;
    if (list[i].available) {
      EXPECT_EQ(list[i].capabilities.name, list[i].name);
    }
  }
  for (const char* always : {"local", "shm", "tcp"}) {
    const auto at = std::find_if(list.begin(), list.end(), [&](const RelayInfo& info) { return info.name == always; });
    ASSERT_NE(at, list.end()) << always;
    EXPECT_TRUE(at->available) << always << ": " << at->reason;
  }
}

TEST(Registry, AnUnknownNameListsTheKnownOnes) {
  const auto relay = make_relay("smh", {});
  ASSERT_FALSE(relay.ok());
  EXPECT_EQ(relay.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(relay.status().message().find("'smh'"), std::string::npos);
  for (const std::string& name : relay_names()) {
    EXPECT_NE(relay.status().message().find("'" + name + "'"), std::string::npos) << name;
  }
}

TEST(Registry, WhatIsAvailableCanBeMade) {
  for (const RelayInfo& info : list_relays()) {
    RelayOptions options;
    options.pool_bytes = 1 << 20;
    const auto relay = make_relay(info.name, options);
    EXPECT_EQ(relay.ok(), info.available) << info.name;
  }
}

}  // namespace
}  // namespace millrace
