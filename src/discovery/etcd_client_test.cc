// EtcdClient against answers that a server of a script gives; tests/e2e/test_discovery.py has the real one.
#include "discovery/etcd_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "http/testing/scripted_server.h"

namespace millrace {
namespace {

using http::testing::Peer;
using http::testing::ScriptedServer;

std::string answer(std::string_view body, int status = 200) {
  return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status, body.size(), body);
}

// A server with these answers to POSTs, one after the other; what it was asked for is kept.
class FakeEtcd {
 public:
  explicit FakeEtcd(std::vector<std::string> answers)
      : answers_(std::move(answers)), server_([this](Peer& peer, const std::string& head) {
          paths_.push_back(head.substr(5, head.find(' ', 5) - 5));
          const std::size_t token = head.find("Authorization: ");
          tokens_.push_back(token == head.npos ? "" : head.substr(token + 15, head.find('\r', token) - token - 15));
          peer.send(answers_[std::min(paths_.size(), answers_.size()) - 1]);
        }) {}
  std::string member() const { return fmt::format("127.0.0.1:{}", server_.port()); }
  const std::vector<std::string>& paths() const { return paths_; }
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  const std::vector<std::string> answers_;
  std::vector<std::string> paths_, tokens_;
  ScriptedServer server_;
};

EtcdClient client_of(const std::string& members, std::function<bool()> cancelled = {}) {
  auto name = parse_etcd_name("etcd://" + members + "/omni");
  EXPECT_TRUE(name.ok());
  auto client = EtcdClient::open(*name, std::move(cancelled));
  EXPECT_TRUE(client.ok());
  return std::move(client).value();
}

// The address "tcp://10.0.0.1:30100" under the lease 7587, at revision 12.
constexpr const char* kHeld =
    R"({"header":{"revision":"12"},"kvs":[{"key":"aw==","value":"dGNwOi8vMTAuMC4wLjE6MzAxMDA=","lease":"7587"}],"count":"1"})";

TEST(EtcdClient, ReadsAnEntry) {
  FakeEtcd etcd({answer(kHeld), answer(R"({"header":{"revision":"13"}})")});
  EtcdClient client = client_of(etcd.member());
  const auto held = client.get("k");
  ASSERT_TRUE(held.ok()) << held.status().message();
  EXPECT_EQ(held->value, "tcp://10.0.0.1:30100");
  EXPECT_EQ(held->lease, 7587);
  EXPECT_EQ(held->revision, 12);
  const auto absent = client.get("k");
  ASSERT_TRUE(absent.ok());
  EXPECT_EQ(absent->value, std::nullopt);
  EXPECT_EQ(absent->revision, 13);
}

TEST(EtcdClient, AClaimIsWonOrShowsWhoHasIt) {
  FakeEtcd etcd(
      {answer(R"({"header":{"revision":"5"},"succeeded":true,"responses":[{"response_put":{}}]})"),
       answer(fmt::format(R"({{"header":{{"revision":"12"}},"responses":[{{"response_range":{}}}]}})", kHeld))});
  EtcdClient client = client_of(etcd.member());
  const auto won = client.claim("k", "tcp://me:1", 99);
  ASSERT_TRUE(won.ok()) << won.status().message();
  EXPECT_EQ(won->value, "tcp://me:1");
  EXPECT_EQ(won->lease, 99);
  const auto lost = client.claim("k", "tcp://me:1", 99);
  ASSERT_TRUE(lost.ok()) << lost.status().message();
  EXPECT_EQ(lost->value, "tcp://10.0.0.1:30100");
  EXPECT_EQ(lost->lease, 7587);
}

TEST(EtcdClient, ALeaseStandsUntilAnAnswerWithoutTimeToLive) {
  FakeEtcd etcd({answer(R"({"ID":"7587891234567890123","TTL":"6"})"), answer(R"({"result":{"ID":"1","TTL":"6"}})"),
                 answer(R"({"result":{"ID":"1"}})")});
  EtcdClient client = client_of(etcd.member());
  EXPECT_EQ(*client.grant_lease(6), 7587891234567890123);
  EXPECT_TRUE(*client.keep_alive(1));
  EXPECT_FALSE(*client.keep_alive(1));
}

TEST(EtcdClient, AnotherMemberIsAskedWhereOneFails) {
  FakeEtcd broken({answer("no quorum", 503)}), good({answer(kHeld)});
  EtcdClient client = client_of(broken.member() + "," + good.member());
  EXPECT_TRUE(client.get("k").ok());
  EXPECT_TRUE(client.get("k").ok());
  EXPECT_EQ(broken.paths().size(), 1u);  // the one that answered is asked first
}

TEST(EtcdClient, WhatIsNoAnswerOfEtcdIsAnError) {
  FakeEtcd etcd({answer("<html>"), answer("{}"), answer("[]"), answer("{}", 404), answer(std::string(70'000, 'x')),
                 answer(R"({"header":{"revision":"1"},"kvs":[{"value":"?"}]})")});
  EtcdClient client = client_of(etcd.member());
  for (int i = 0; i < 6; ++i) {
    const auto entry = client.get("k");
    ASSERT_FALSE(entry.ok()) << i;
    EXPECT_EQ(entry.status().code(), StatusCode::kInternal) << entry.status().message();
  }
}

TEST(EtcdClient, AWaitEndsWithTheChange) {
  const std::string made = R"({"result":{"created":true}})"
                           "\n";
  FakeEtcd etcd({"HTTP/1.1 200 OK\r\n\r\n" + made +
                     R"({"result":{"events":[{"kv":{}}]}})"
                     "\n",
                 "HTTP/1.1 200 OK\r\n\r\n" + made +
                     R"({"result":{"canceled":true,"compact_revision":"9"}})"
                     "\n",
                 answer(made)});
  EtcdClient client = client_of(etcd.member());
  EXPECT_TRUE(client.wait_for_change("k", 3, 600'000).ok());
  EXPECT_TRUE(client.wait_for_change("k", 3, 600'000).ok());  // forgotten: the key is to be read again
  EXPECT_EQ(client.wait_for_change("k", 3, 600'000).code(), StatusCode::kUnavailable);
  EXPECT_EQ(etcd.paths(), std::vector<std::string>(3, "/v3/watch"));
}

TEST(EtcdClient, AWaitWithoutAChangeEndsWithItsTimeAndACancelledOneAtOnce) {
  std::atomic<bool> ending = false;
  ScriptedServer quiet([](Peer& peer, const std::string&) {
    peer.send("HTTP/1.1 200 OK\r\n\r\n{\"result\":{\"created\":true}}\n");
    peer.wait_closed();
  });
  EtcdClient client = client_of(fmt::format("127.0.0.1:{}", quiet.port()), [&ending] { return ending.load(); });
  EXPECT_TRUE(client.wait_for_change("k", 3, 50).ok());
  ending = true;
  EXPECT_EQ(client.wait_for_change("k", 3, 600'000).code(), StatusCode::kCancelled);
}

EtcdClient client_with_user(const FakeEtcd& etcd) {
  auto name = parse_etcd_name("etcd://" + etcd.member() + "/omni");
  EXPECT_TRUE(name.ok() && set_etcd_user("millrace:secret", *name).ok());
  auto client = EtcdClient::open(*name, {});
  EXPECT_TRUE(client.ok());
  return std::move(client).value();
}

TEST(EtcdClient, AUserHasATokenThatIsGotAnewWhereItIsRefused) {
  const std::string too_old = answer(R"({"error":"etcdserver: invalid auth token","code":16})", 401);
  FakeEtcd etcd({answer(R"({"token":"first"})"), answer(kHeld), answer(kHeld), too_old, answer(R"({"token":"second"})"),
                 answer(kHeld)});
  EtcdClient client = client_with_user(etcd);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(client.get("k").ok());
  EXPECT_EQ(etcd.paths(), (std::vector<std::string>{"/v3/auth/authenticate", "/v3/kv/range", "/v3/kv/range",
                                                    "/v3/kv/range", "/v3/auth/authenticate", "/v3/kv/range"}));
  EXPECT_EQ(etcd.tokens(), (std::vector<std::string>{"", "first", "first", "first", "", "second"}));
}

TEST(EtcdClient, ARefusedUserIsAnErrorAndATokenIsAskedForOnce) {
  FakeEtcd wrong({answer(R"({"error":"etcdserver: authentication failed, invalid user ID or password"})", 400)});
  EtcdClient client = client_with_user(wrong);
  const Status refused = client.get("k").status();
  EXPECT_EQ(refused.code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(refused.message().find("secret"), std::string::npos);
  EXPECT_NE(refused.message().find("'millrace'"), std::string::npos);

  const std::string never = answer(R"({"error":"etcdserver: invalid auth token"})", 401);
  FakeEtcd fickle({answer(R"({"token":"t"})"), never});
  EtcdClient other = client_with_user(fickle);
  EXPECT_EQ(other.get("k").status().code(), StatusCode::kUnauthenticated);
  EXPECT_EQ(fickle.paths().size(), 2u);

  FakeEtcd poor({answer(R"({"token":"t"})"), answer(R"({"error":"etcdserver: permission denied"})", 403)});
  EtcdClient third = client_with_user(poor);
  EXPECT_EQ(third.get("k").status().code(), StatusCode::kPermissionDenied);
}

TEST(EtcdClient, WithoutAUserTheErrorNamesTheOption) {
  FakeEtcd etcd({answer(R"({"error":"etcdserver: user name is empty","code":3})", 400)});
  EtcdClient client = client_of(etcd.member());
  const Status status = client.get("k").status();
  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_NE(status.message().find("--discovery-user-file"), std::string::npos);
}

TEST(EtcdClient, ARefusedWaitIsAnError) {
  FakeEtcd etcd({answer(R"({"error":"etcdserver: no quorum","code":14})", 503)});
  EtcdClient client = client_of(etcd.member());
  EXPECT_EQ(client.wait_for_change("k", 3, 600'000).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace
