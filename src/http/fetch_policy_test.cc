// Which URLs are fetched: the forms of a host that a parser may take for another one.
#include "http/fetch_policy.h"

#include <gtest/gtest.h>

namespace millrace::http {
namespace {

std::string domain(const std::string& text) {
  const auto read = read_domain(text);
  return read.ok() ? *read : read.status().message();
}

// "" or the error.
std::string refused(const std::string& url, std::vector<std::string> domains = {"good.example", "*.wide.example"}) {
  FetchPolicy policy;
  policy.domains = std::move(domains);
  return check_fetch_url(url, policy).status().message();
}

TEST(FetchPolicy, DomainsAreHosts) {
  EXPECT_EQ(domain("Example.COM"), "example.com");
  EXPECT_EQ(domain("example.com."), "example.com");
  EXPECT_EQ(domain("*.Example.com"), "*.example.com");
  EXPECT_EQ(domain("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(domain("[::1]"), "[::1]");
  EXPECT_EQ(domain("::1"), "[::1]");
  for (const char* bad : {"", "*", "*.", "*.*.example", "http://example.com", "example.com/a", "a b",
                          "user@example.com", "example.com:80", "ex\\ample"}) {
    EXPECT_NE(domain(bad).find("is no domain; wanted a host such as example.com"), std::string::npos) << bad;
  }
}

TEST(FetchPolicy, HostsOfTheListAlone) {
  for (const char* url :
       {"http://good.example/a.png", "HTTPS://GOOD.Example/a", "http://good.example:8080/", "http://good.example./a",
        "http://a.wide.example/", "http://a.b.wide.example/x?y=1#z", "http://good.example"}) {
    EXPECT_EQ(refused(url), "") << url;
  }
  for (const char* url :
       {"http://evil.example/", "http://wide.example/", "http://evilwide.example/", "http://good.example.evil.example/",
        "http://xgood.example/", "http://127.0.0.1/", "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/",
        "http://127.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1%25eth0]/", "http:///a",
        "http://good.example%2eevil.example/", "http://evil.example#good.example", "http://evil.example?good.example",
        "http://good%00.example/"}) {
    EXPECT_NE(refused(url), "") << url;
  }
  EXPECT_EQ(refused("http://evil.example/secret"),
            "the URL's host is 'evil.example'; wanted one of --media-allowed-domains");
  EXPECT_NE(refused("http://good.example/", {}), "") << "no domains, no fetches";
}

TEST(FetchPolicy, NoUsersNoOddCharactersNoOtherSchemes) {
  for (const char* url : {"http://good.example@evil.example/", "http://user:pass@good.example/",
                          "http://@good.example/", "http://evil.example@good.example/"}) {
    EXPECT_NE(refused(url), "") << url;
  }
  EXPECT_EQ(refused("http://a@good.example/"), "the URL has a user or a password; wanted none");
  for (const char* url :
       {"http://evil.example\\@good.example/", "http://good.example\\.evil.example/", "http://good.example/a b",
        "http://good.example/\r\nHost: evil", "http://good.example/\xc3\xa9", "\thttp://good.example/"}) {
    EXPECT_NE(refused(url).find("backslash"), std::string::npos) << url;
  }
  for (const char* url : {"ftp://good.example/", "gopher://good.example/", "file://good.example/etc/passwd",
                          "good.example/a.png", "//good.example/", "http:good.example", ""}) {
    EXPECT_NE(refused(url), "") << url;
  }
  EXPECT_NE(refused("http://good.example/" + std::string(kMaxFetchUrlBytes, 'a')).find("wanted at most 8192"),
            std::string::npos);
}

TEST(FetchPolicy, AddressesAreNormalBeforeTheyAreCompared) {
  for (const char* url :
       {"http://127.0.0.1/", "http://2130706433/", "http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://127.1/"}) {
    EXPECT_EQ(refused(url, {"127.0.0.1"}), "") << url;
  }
  EXPECT_EQ(refused("http://[0:0:0:0:0:0:0:1]/", {"[::1]"}), "");
}

}  // namespace
}  // namespace millrace::http
