// Fetches from a server of this host: what arrives, what is refused, and what ends a fetch that never would.
#include "http/fetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "http/testing/scripted_server.h"

namespace millrace::http {
namespace {

using testing::Peer;
using testing::ScriptedServer;

FetchPolicy local_policy() {
  FetchPolicy policy;
  policy.domains = {"pictures.example", "127.0.0.1"};
  policy.private_networks = true;
  policy.max_bytes = 1000;
  return policy;
}

FetchControl plain_control() {
  return {.cancelled = [] { return false; }, .take_bytes = [](std::size_t) { return ok_status(); }};
}

class FetchTest : public ::testing::Test {
 protected:
  // The body, or the error, of a GET by the name pictures.example.
  std::string get(ScriptedServer& server, FetchPolicy policy = local_policy(), FetchControl control = plain_control()) {
    policy.addresses.push_back(fmt::format("pictures.example:{}:127.0.0.1", server.port()));
    const auto got = fetch(fmt::format("http://pictures.example:{}/a.png?b=1#c", server.port()), policy, control);
    code_ = got.ok() ? StatusCode::kOk : got.status().code();
    return got.ok() ? *got : got.status().message();
  }
  std::string answer_of(const std::string& answer, FetchPolicy policy = local_policy()) {
    ScriptedServer server([&](Peer& peer, const std::string&) { peer.send(answer); });
    return get(server, policy);
  }

  StatusCode code_ = StatusCode::kOk;
};

TEST_F(FetchTest, ABodyArrives) {
  std::string seen;
  ScriptedServer server([&](Peer& peer, const std::string& head) {
    seen = head;
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nSet-Cookie: a=b\r\n\r\nfour");
  });
  EXPECT_EQ(get(server), "four");
  EXPECT_TRUE(seen.starts_with("GET /a.png?b=1 HTTP/1.1\r\n")) << seen;
  EXPECT_NE(seen.find(fmt::format("Host: pictures.example:{}\r\n", server.port())), std::string::npos) << seen;
  EXPECT_EQ(seen.find("Cookie"), std::string::npos);
  EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"),
            "onetwo");
  EXPECT_EQ(answer_of("HTTP/1.0 200 OK\r\n\r\nto the end"), "to the end");
  EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nraw"), "raw");
}

TEST_F(FetchTest, RedirectsAndErrorsAreNotFollowed) {
  ScriptedServer inside(
      [](Peer& peer, const std::string&) { peer.send("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"); });
  EXPECT_EQ(answer_of(fmt::format("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{}/\r\nContent-Length: 2\r\n\r\nhi",
                                  inside.port())),
            "its server answered 302; wanted 200: redirects are not followed");
  EXPECT_EQ(inside.connections(), 0);
  EXPECT_EQ(answer_of("HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\nsecret"),
            "its server answered 404; wanted 200");
  EXPECT_EQ(answer_of("HTTP/1.1 204 No Content\r\n\r\n"), "its server answered 204; wanted 200");
}

TEST_F(FetchTest, WhatDoesNotEndIsEnded) {
  EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"),
            "its server sends over 1000 bytes; wanted at most so many");
  EXPECT_EQ(code_, StatusCode::kTooLarge);
  const auto endless = [](const char* head, const char* line) {
    return [head, line](Peer& peer, const std::string&) {
      peer.send(head);
      while (peer.send(line)) {
      }
    };
  };
  ScriptedServer body(endless("HTTP/1.0 200 OK\r\n\r\n", "more and more"));
  EXPECT_EQ(get(body), "its server sends over 1000 bytes; wanted at most so many");
  ScriptedServer head(endless("HTTP/1.1 200 OK\r\n", "X: a line of the head that never ends\r\n"));
  EXPECT_EQ(get(head), "its server sends over 65536 bytes of header fields");
  ScriptedServer silent([](Peer& peer, const std::string&) { peer.wait_closed(); });
  FetchPolicy soon = local_policy();
  soon.timeout = std::chrono::milliseconds(50);
  EXPECT_EQ(get(silent, soon), "it did not arrive within 50 ms");
  ScriptedServer slow([](Peer& peer, const std::string&) {
    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\na");
    peer.wait_closed();
  });
  EXPECT_EQ(get(slow, soon), "it did not arrive within 50 ms");
}

TEST_F(FetchTest, WhatIsBrokenOffIsNoFile) {
  EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour"),
            "its server broke off; wanted all that it announced");
  EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nfour"),
            "its server broke off; wanted all that it announced");
  EXPECT_EQ(answer_of(""), "its server broke off; wanted all that it announced");
  EXPECT_EQ(answer_of("SSH-2.0-server\r\n"), "its server broke off; wanted all that it announced");
}

TEST_F(FetchTest, AddressesAreCheckedWhereTheSocketIsOpened) {
  ScriptedServer server([](Peer& peer, const std::string&) { peer.send("HTTP/1.1 200 OK\r\n\r\nsecret"); });
  FetchPolicy outside = local_policy();
  outside.private_networks = false;
  // An allowed name whose address is not public, a closed port and a name without an address look the same.
  const std::string refused = get(server, outside);
  EXPECT_EQ(refused, "its host 'pictures.example' could not be reached; wanted a server that answers");
  EXPECT_EQ(server.connections(), 0);
  FetchPolicy nowhere = local_policy();
  nowhere.addresses = {"pictures.example:1:127.0.0.1"};
  EXPECT_EQ(fetch("http://pictures.example:1/", nowhere, plain_control()).status().message(), refused);
  nowhere.addresses = {};
  EXPECT_EQ(fetch("http://pictures.example:1/", nowhere, plain_control()).status().message(), refused);
  for (const char* address : {"[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "0.0.0.0"}) {
    outside.addresses = {fmt::format("pictures.example:{}:{}", server.port(), address)};
    EXPECT_EQ(
        fetch(fmt::format("http://pictures.example:{}/", server.port()), outside, plain_control()).status().message(),
        refused);
  }
  EXPECT_NE(fetch(fmt::format("http://0x7f.1:{}/", server.port()), outside, plain_control())
                .status()
                .message()
                .find("could not be reached"),
            std::string::npos);
  EXPECT_EQ(server.connections(), 0);
  EXPECT_NE(fetch(fmt::format("https://pictures.example:{}/", server.port()), local_policy(), plain_control())
                .status()
                .message()
                .find("could not be reached"),
            std::string::npos);
}

TEST_F(FetchTest, ProxiesOfTheEnvironmentAreNotUsed) {
  ScriptedServer proxy([](Peer& peer, const std::string&) { peer.send("HTTP/1.1 200 OK\r\n\r\nof the proxy"); });
  const std::string url = fmt::format("http://127.0.0.1:{}", proxy.port());
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"}) ::setenv(name, url.c_str(), 1);
  EXPECT_EQ(answer_of("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour"), "four");
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy", "ALL_PROXY"}) ::unsetenv(name);
  EXPECT_EQ(proxy.connections(), 0);
}

TEST_F(FetchTest, AClientThatLeavesEndsIt) {
  std::atomic<bool> asked{false}, closed{false};
  ScriptedServer server([&](Peer& peer, const std::string&) {
    asked = true;
    peer.wait_closed();
    closed = true;
  });
  FetchControl control = plain_control();
  control.cancelled = [&] { return asked.load(); };
  FetchPolicy long_policy = local_policy();
  long_policy.timeout = std::chrono::minutes(10);
  get(server, long_policy, control);
  EXPECT_EQ(code_, StatusCode::kCancelled);
  for (int i = 0; i < 6000 && !closed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(closed) << "the connection is still open";
}

TEST_F(FetchTest, BytesAreAskedForBeforeTheyAreKept) {
  ScriptedServer server(
      [](Peer& peer, const std::string&) { peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfour"); });
  FetchControl control = plain_control();
  std::size_t taken = 0;
  control.take_bytes = [&](std::size_t size) {
    taken += size;
    return Status(StatusCode::kResourceExhausted, "no more");
  };
  EXPECT_EQ(get(server, local_policy(), control), "no more");
  EXPECT_EQ(code_, StatusCode::kResourceExhausted);
  EXPECT_EQ(taken, 4u);
}

}  // namespace
}  // namespace millrace::http
