// Who may pass: keys and the pages of other origins.
#include "http/gate.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace millrace::http {
namespace {

RequestHead head_of(std::string method, const std::vector<std::pair<std::string, std::string>>& fields) {
  RequestHead head{.method = std::move(method)};
  head.headers.add("Host", "localhost:30000");
  for (const auto& [name, value] : fields) head.headers.add(name, value);
  return head;
}

TEST(Gate, XApiKeyCountsWithoutAuthorizationAlone) {
  const Gate gate({.api_key = "k"}, true);
  const Route route{.method = "GET", .pattern = "/v1/models"};
  EXPECT_FALSE(gate.check_access(head_of("GET", {{"x-api-key", "k"}}), &route, false));
  EXPECT_FALSE(gate.check_access(head_of("GET", {{"Authorization", "Bearer k"}, {"x-api-key", "x"}}), &route, false));
  EXPECT_EQ(gate.check_access(head_of("GET", {{"x-api-key", "x"}}), &route, false).status, 401);
  for (const char* form : {"Basic a2V5", "Bearer", "Bearer ", "Bearer x", "k", ""}) {
    const RequestHead both = head_of("GET", {{"Authorization", form}, {"x-api-key", "k"}});
    EXPECT_EQ(gate.check_access(both, &route, false).status, 401) << form;
  }
}

TEST(Gate, TrustsKeysAndWithoutOneThisMachine) {
  const auto head = [](std::vector<std::pair<std::string, std::string>> fields, std::string host = "localhost") {
    RequestHead out = head_of("GET", fields);
    out.host = std::move(host);
    return out;
  };
  const Gate locked({.api_key = "k", .admin_api_key = "a"}, false);
  EXPECT_TRUE(locked.trusts(head({{"Authorization", "Bearer k"}}, "llm.example"), "203.0.113.9:7"));
  EXPECT_TRUE(locked.trusts(head({{"x-api-key", "a"}, {"X-Forwarded-For", "203.0.113.9"}}), "127.0.0.1:7"));
  EXPECT_FALSE(locked.trusts(head({}), "127.0.0.1:7"));
  EXPECT_FALSE(locked.trusts(head({{"Authorization", "Bearer x"}}), "unix"));

  const Gate open({}, false);
  for (const char* address : {"127.0.0.1:7", "127.8.0.1:7", "[::1]:7", "unix"}) {
    EXPECT_TRUE(open.trusts(head({}), address)) << address;
    for (const char* name : {"X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"}) {
      EXPECT_FALSE(open.trusts(head({{name, "203.0.113.9"}}), address)) << name << " " << address;
    }
  }
  EXPECT_FALSE(open.trusts(head({}), "203.0.113.9:7"));
  EXPECT_FALSE(open.trusts(head({}), "[2001:db8::1]:7"));
  EXPECT_FALSE(open.trusts(head({}, "evil.example"), "127.0.0.1:7"));
  // The administrators' key alone leaves users without one.
  EXPECT_TRUE(Gate({.admin_api_key = "a"}, false).trusts(head({}), "127.0.0.1:7"));
}

// A page can send a GET by an image, without Origin; browsers name its origin in other fields.
TEST(Gate, PagesOfOtherOriginsCannotGetAdminRoutes) {
  const Gate gate({.admin_without_key = true, .cors_origins = {"https://ui.example"}}, true);
  const Route admin{.method = "GET", .pattern = "/flush_cache", .access = Access::kAdmin};
  const Route user{.method = "GET", .pattern = "/v1/models"};
  const Route held{.method = "GET", .pattern = "/live/events", .same_origin = true};
  struct Case {
    std::vector<std::pair<std::string, std::string>> fields;
    int want;
  };
  const Case cases[] = {
      {{}, 0},
      {{{"Origin", "https://evil.example"}}, 403},
      {{{"Origin", "null"}}, 403},
      {{{"Origin", "https://ui.example"}, {"Sec-Fetch-Site", "cross-site"}}, 0},
      {{{"Origin", "http://localhost:30000"}}, 0},
      {{{"Origin", "http://localhost:30001"}}, 403},
      {{{"Sec-Fetch-Site", "cross-site"}}, 403},
      {{{"Sec-Fetch-Site", "same-site"}}, 403},
      {{{"Sec-Fetch-Site", "cross-site"}, {"Referer", "http://localhost:30000/"}}, 403},
      {{{"Sec-Fetch-Site", "same-origin"}}, 0},
      {{{"Sec-Fetch-Site", "none"}}, 0},
      {{{"Referer", "https://evil.example/"}}, 403},
      {{{"Referer", "https://localhost:30000.evil.example/localhost:30000"}}, 403},
      {{{"Referer", "http://localhost:30000/web/"}}, 0},
  };
  for (const Case& test : cases) {
    for (const char* method : {"GET", "HEAD"}) {
      const RequestHead head = head_of(method, test.fields);
      EXPECT_EQ(gate.check_origin(head, admin).status, test.want) << method << " " << &test - cases;
      EXPECT_EQ(gate.check_origin(head, held).status, test.want) << method << " " << &test - cases;
      EXPECT_EQ(gate.check_origin(head, user).status, 0);
    }
  }
}

TEST(Gate, PagesOfOtherOriginsCannotPost) {
  const Gate gate({}, true);
  const Route route{.method = "POST", .pattern = "/v1/completions"};
  EXPECT_EQ(gate.check_origin(head_of("POST", {{"Origin", "https://evil.example"}}), route).status, 403);
  EXPECT_EQ(gate.check_origin(head_of("POST", {{"Origin", "http://localhost:30000"}}), route).status, 0);
  EXPECT_EQ(gate.check_origin(head_of("POST", {{"Referer", "https://a.example/"}}), route).status, 0);
}

}  // namespace
}  // namespace millrace::http
