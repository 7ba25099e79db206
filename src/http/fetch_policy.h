// From which servers this process fetches what a client names by its URL. A URL is parsed once, by libcurl, and the
// same parsed form is checked and fetched (http/fetch.h): two parsers that disagree about a host would be a way around
// the check.
//
// Thread safety: values and pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct Curl_URL;

namespace millrace::http {

inline constexpr std::size_t kMaxFetchUrlBytes = 8192;

struct FetchPolicy {
  std::vector<std::string> domains;           // of read_domain(); none: nothing is fetched
  bool private_networks = false;              // addresses that are not public are connected to
  std::size_t max_bytes = 32 << 20;           // of a body
  std::chrono::milliseconds timeout{10'000};  // of one fetch, from the look-up of the name to the last byte
  // Names that are looked up here and not in the DNS, as of curl's --resolve: "NAME:PORT:ADDRESS". For tests.
  std::vector<std::string> addresses;
};

// A domain of the policy in its normal form: "example.com", "*.example.com" (every name below it, and not itself), or
// an address (IPv6 with brackets or without). kInvalidArgument: no such thing.
Result<std::string> read_domain(std::string_view text);

struct UrlDeleter {
  void operator()(Curl_URL* url) const;
};
using ParsedUrl = std::unique_ptr<Curl_URL, UrlDeleter>;

// http and https, of the policy's domains, at any port, without user and password. kInvalidArgument or kUnsupported;
// the message has the host and the URL's first bytes at most.
Result<ParsedUrl> check_fetch_url(std::string_view url, const FetchPolicy& policy);

// The host of a parsed URL, in lower case, without a dot at its end; an address of IPv6 in brackets.
std::string host_of(const ParsedUrl& url);

}  // namespace millrace::http
