// The parts that read bytes without sockets: heads in parts, targets, hosts, bodies, routes.
#include <gtest/gtest.h>

#include <tuple>

#include "http/body.h"
#include "http/request_head.h"
#include "http/route_table.h"
#include "http/target.h"

namespace millrace::http {
namespace {

RequestHead parse(const std::string& raw, HttpError& error) {
  Limits limits;
  HeadScanner scanner(limits);
  RequestHead head;
  if (scanner.scan(raw) == HeadScanner::State::kComplete) {
    error = parse_head(std::string_view(raw).substr(0, scanner.head_bytes()), limits, head);
  } else {
    error = scanner.error() ? scanner.error() : HttpError{1, "incomplete"};
  }
  return head;
}

TEST(HeadTest, ReadsEveryField) {
  HttpError error;
  RequestHead head = parse(
      "POST /a%20b/%C3%A9?x=%2F HTTP/1.1\r\nhost: Example.ORG:8080\r\nContent-LENGTH:  12 \r\nX-Empty:\r\n"
      "Connection: foo , Close\r\nExpect: 100-Continue\r\n\r\nbody",
      error);
  ASSERT_FALSE(error) << error.message;
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/a b/\xC3\xA9");
  EXPECT_EQ(head.segments, (std::vector<std::string>{"a b", "\xC3\xA9"}));
  EXPECT_EQ(head.query, "x=%2F");
  EXPECT_EQ(head.host, "example.org");
  EXPECT_EQ(head.content_length, 12u);
  EXPECT_FALSE(head.keep_alive);
  EXPECT_TRUE(head.expect_continue);
  EXPECT_EQ(*head.headers.find("x-EMPTY"), "");
}

TEST(HeadTest, ScannerSeesTheEndWhereverTheBytesAreCut) {
  const std::string raw = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string data = raw + "GET /next";
  Limits limits;
  for (size_t step = 1; step <= data.size(); ++step) {
    HeadScanner scanner(limits);
    HeadScanner::State state = HeadScanner::State::kMore;
    for (size_t shown = step; state == HeadScanner::State::kMore; shown += step) {
      state = scanner.scan(std::string_view(data).substr(0, shown));
    }
    EXPECT_EQ(state, HeadScanner::State::kComplete);
    EXPECT_EQ(scanner.head_bytes(), raw.size());
  }
}

// RFC 9112 3.2.2.
TEST(HeadTest, AnAbsoluteTargetHasTheHost) {
  const auto of = [](const std::string& target, HttpError& error) {
    return parse("GET " + target + " HTTP/1.1\r\nHost: other.org\r\n\r\n", error);
  };
  for (const auto& [target, path, query] : {std::tuple("http://Example.ORG:8080/a/b?x=1", "/a/b", "x=1"),
                                            {"HTTPS://example.org", "/", ""},
                                            {"http://example.org?x=1", "/", "x=1"},
                                            {"http://example.org/a?y=http://z/", "/a", "y=http://z/"}}) {
    HttpError error;
    const RequestHead head = of(target, error);
    EXPECT_FALSE(error) << target << ": " << error.message;
    EXPECT_EQ(head.path, path);
    EXPECT_EQ(head.query, query);
    EXPECT_EQ(head.host, "example.org");
  }
  HttpError error;
  EXPECT_EQ(of("/a?y=http://z/", error).host, "other.org");
  for (const char* target : {"ftp://example.org/", "http://", "http:///a", "http://a b/", "http://user@a/",
                             "example.org/a", "http://example.org/a/../b"}) {
    HttpError wrong;
    of(target, wrong);
    EXPECT_EQ(wrong.status, 400) << target;
  }
  parse("GET http://a/ HTTP/1.1\r\nHost: b c\r\n\r\n", error);
  EXPECT_EQ(error.status, 400);
}

TEST(HeadTest, ManyKeepAliveRules) {
  struct Case {
    const char* line;
    bool want;
  };
  for (const Case& test : {Case{"1.1\r\nHost: a\r\n", true}, Case{"1.1\r\nHost: a\r\nConnection: close\r\n", false},
                           Case{"1.0\r\n", false}, Case{"1.0\r\nConnection: Keep-Alive\r\n", true},
                           Case{"1.0\r\nConnection: keep-alive\r\nConnection: close\r\n", false},
                           Case{"1.1\r\nHost: a\r\nConnection: closed\r\n", true}}) {
    HttpError error;
    EXPECT_EQ(parse("GET / HTTP/" + std::string(test.line) + "\r\n", error).keep_alive, test.want) << test.line;
    EXPECT_FALSE(error) << error.message;
  }
}

TEST(TargetTest, PercentDecoding) {
  std::string out;
  EXPECT_TRUE(percent_decode("a%41%7a+b", false, out));
  EXPECT_EQ(out, "aAz+b");
  EXPECT_TRUE(percent_decode("a+b%2B", true, out));
  EXPECT_EQ(out, "a b+");
  for (const char* bad : {"%", "%4", "%4g", "%g4", "%00", "a%"}) EXPECT_FALSE(percent_decode(bad, false, out)) << bad;
}

TEST(TargetTest, LoopbackNames) {
  for (const char* name : {"localhost", "127.0.0.1", "127.1.2.3", "::1", "ui.localhost"})
    EXPECT_TRUE(is_loopback_name(name));
  for (const char* name :
       {"127.0.0.1.evil", "127.evil", "127.0.0.", "127..0.1", "128.0.0.1", "evil-localhost", "localhost.evil"}) {
    EXPECT_FALSE(is_loopback_name(name)) << name;
  }
}

TEST(BodyTest, ChunkedInReadsOfEverySize) {
  HttpError error;
  RequestHead head = parse("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n", error);
  ASSERT_FALSE(error) << error.message;
  const std::string wire =
      "4\r\nWiki\r\n6;x=y\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\nA: b\r\nC: d\r\n\r\n";  // RFC 9112's
  for (size_t step = 1; step <= wire.size(); ++step) {
    BodyReader reader(head, 100);
    std::string body;
    size_t taken = 0;
    for (size_t at = 0; at < wire.size(); at += step) {
      taken += reader.consume(std::string_view(wire).substr(at, step), body);
    }
    EXPECT_TRUE(reader.done());
    EXPECT_EQ(taken, wire.size());
    EXPECT_EQ(body,
              "Wiki"
              "pedia "
              "in \r\n\r\nchunks.");
    EXPECT_EQ(reader.consume("next request", body), 0u);
  }
}

TEST(BodyTest, LimitIsExact) {
  HttpError error;
  RequestHead head = parse("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n", error);
  std::string body;
  EXPECT_EQ(BodyReader(head, 9).error().status, 413);
  BodyReader fits(head, 10);
  EXPECT_EQ(fits.consume("0123456789NEXT", body), 10u);
  EXPECT_TRUE(fits.done());
}

TEST(RouterTest, LiteralsWinOverParametersAndMethodsCombine) {
  RouteTable router;
  auto handler = [](RequestPtr, ResponderPtr) {};
  router.add({.method = "GET", .pattern = "/a/{x}", .handler = handler});
  router.add({.method = "GET", .pattern = "/a/b", .handler = handler});
  router.add({.method = "DELETE", .pattern = "/a/{x}", .handler = handler});
  router.add({.method = "GET", .pattern = "/{all...}", .handler = handler});
  router.add({.method = "HEAD", .pattern = "/a/b", .handler = handler});
  EXPECT_EQ(router.match("GET", {"a", "b"}).route->pattern, "/a/b");
  EXPECT_EQ(router.match("HEAD", {"a", "b"}).route->method, "HEAD");
  EXPECT_EQ(router.match("HEAD", {"a", "c"}).route->pattern, "/a/{x}");
  EXPECT_EQ(router.match("DELETE", {"a", "b"}).route->pattern, "/a/{x}");
  EXPECT_EQ(router.match("GET", {"q", "r", "s"}).params[0].second, "q/r/s");
  RouteTable::Match wrong = router.match("PUT", {"a", "c"});
  EXPECT_EQ(wrong.route, nullptr);
  EXPECT_TRUE(wrong.path_known);
  EXPECT_EQ(wrong.allow, "GET, HEAD, DELETE, OPTIONS");
}

}  // namespace
}  // namespace millrace::http
