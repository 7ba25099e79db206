// The registry: every name is listed with a reason where it is absent, and edges take the road that the table of
// docs/relay.md says.
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

TEST(Registry, AnUnknownNameSaysTheKnownOnes) {
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

TEST(Registry, WhoAndWhere) {
  EXPECT_FALSE(process_id().empty());
  EXPECT_FALSE(host_id().empty());
  const RelayPeer peer = this_peer({"tcp"});
  EXPECT_EQ(peer.process, process_id());
  EXPECT_EQ(peer.host, host_id());
}

// ---- the choice

const std::vector<std::string> kAll = {"local", "shm", "tcp", "ucx", "nccl", "nixl", "mooncake"};

std::string chosen(const RelayPeer& from, const RelayPeer& to, std::string_view wanted = "auto") {
  const Result<std::string> name = choose_relay(from, to, wanted);
  return name.ok() ? *name : "error";
}

TEST(Registry, AutoTakesTheShortestRoad) {
  const RelayPeer here{.process = "p1", .host = "h1", .relays = kAll};
  const RelayPeer beside{.process = "p2", .host = "h1", .relays = kAll};
  const RelayPeer away{.process = "p3", .host = "h2", .relays = kAll};
  EXPECT_EQ(chosen(here, here), "local");
  EXPECT_EQ(chosen(here, beside), "shm");
  EXPECT_EQ(chosen(here, away), "tcp");
  EXPECT_EQ(chosen(away, here), "tcp");
}

TEST(Registry, UcxOnlyWithRdmaOnBothEndsOrByName) {
  RelayPeer from{.process = "p1", .host = "h1", .relays = kAll, .rdma = true};
  RelayPeer to{.process = "p3", .host = "h2", .relays = kAll};
  EXPECT_EQ(chosen(from, to), "tcp");
  EXPECT_EQ(chosen(from, to, "ucx"), "ucx");
  to.rdma = true;
  EXPECT_EQ(chosen(from, to), "ucx");
  to.host = "h1";
  EXPECT_EQ(chosen(from, to), "shm");
}

TEST(Registry, DeviceMemoryTakesNcclBetweenProcesses) {
  RelayPeer from{.process = "p1", .host = "h1", .relays = kAll, .device = true};
  RelayPeer to{.process = "p2", .host = "h1", .relays = kAll, .device = true};
  EXPECT_EQ(chosen(from, to), "nccl");
  EXPECT_EQ(chosen(from, from), "local");
  to.device = false;
  EXPECT_EQ(chosen(from, to), "shm");
  EXPECT_EQ(chosen(from, to, "nccl"), "error");
}

TEST(Registry, OnlyWhatBothHave) {
  const RelayPeer from{.process = "p1", .host = "h1", .relays = {"shm", "tcp"}};
  const RelayPeer to{.process = "p2", .host = "h1", .relays = {"local", "tcp"}};
  EXPECT_EQ(chosen(from, to), "tcp");
  const RelayPeer poor{.process = "p2", .host = "h1", .relays = {"local"}};
  EXPECT_EQ(choose_relay(from, poor).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(choose_relay(from, to, "shm").status().message(),
            "the edge cannot take relay 'shm': its receiver has 'local', 'tcp'");
  EXPECT_EQ(choose_relay(from, to, "local").status().message(),
            "the edge cannot take relay 'local': its ends are in two processes");
}

TEST(Registry, ARoadThatIsTooShortIsRefusedByName) {
  const RelayPeer from{.process = "p1", .host = "h1", .relays = kAll};
  const RelayPeer to{.process = "p2", .host = "h2", .relays = kAll};
  EXPECT_EQ(chosen(from, to, "local"), "error");
  EXPECT_EQ(chosen(from, to, "shm"), "error");
  EXPECT_EQ(chosen(from, to, "mooncake"), "mooncake");
}

}  // namespace
}  // namespace millrace
