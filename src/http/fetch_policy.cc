#include "http/fetch_policy.h"

#include <curl/curl.h>

#include <algorithm>
#include <utility>

namespace millrace::http {
namespace {

constexpr std::size_t kShownBytes = 64;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string part_of(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, 0) != CURLUE_OK) return "";
  std::string out = text;
  curl_free(text);
  return out;
}

// Printable ASCII, and no backslash, which browsers take for a slash.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f && c != '\\'; });
}

bool is_of_domain(const std::string& host, const std::string& domain) {
  if (!domain.starts_with("*.")) return host == domain;
  const std::string_view below = std::string_view(domain).substr(1);  // ".example.com"
  return host.size() > below.size() && host.ends_with(below);
}

}  // namespace

void UrlDeleter::operator()(Curl_URL* url) const { curl_url_cleanup(url); }

std::string host_of(const ParsedUrl& url) {
  std::string host = lower(part_of(url.get(), CURLUPART_HOST));
  if (host.ends_with('.')) host.pop_back();
  return host;
}

Result<std::string> read_domain(std::string_view text) {
  const bool below = text.starts_with("*.");
  std::string name(below ? text.substr(2) : text);
  if (std::ranges::count(name, ':') > 1 && !name.starts_with('[')) name = fmt::format("[{}]", name);
  const ParsedUrl url(curl_url());
  const bool parsed = is_plain(name) && name.find_first_of("/?#@*") == std::string_view::npos &&
                      curl_url_set(url.get(), CURLUPART_URL, fmt::format("http://{}/", name).c_str(), 0) == CURLUE_OK &&
                      part_of(url.get(), CURLUPART_PORT).empty() && !host_of(url).empty();
  if (!parsed) {
    return invalid_argument("'{}' is no domain; wanted a host such as example.com, or *.example.com for those below it",
                            text.substr(0, kShownBytes));
  }
  return (below ? "*." : "") + host_of(url);
}

Result<ParsedUrl> check_fetch_url(std::string_view text, const FetchPolicy& policy) {
  if (text.size() > kMaxFetchUrlBytes) {
    return invalid_argument("the URL has {} bytes; wanted at most {}", text.size(), kMaxFetchUrlBytes);
  }
  if (!is_plain(text)) {
    return invalid_argument(
        "the URL has a space, a backslash, a control character or one that is not ASCII; wanted %XX");
  }
  ParsedUrl url(curl_url());
  const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, std::string(text).c_str(), CURLU_DISALLOW_USER);
  if (code == CURLUE_USER_NOT_ALLOWED) {
    return error(StatusCode::kUnsupported, "the URL has a user or a password; wanted none");
  }
  const std::string scheme = lower(part_of(url.get(), CURLUPART_SCHEME));
  if (code != CURLUE_OK || (scheme != "http" && scheme != "https")) {
    return invalid_argument("'{}' begins no URL that can be read; wanted http://HOST/ or https://HOST/",
                            text.substr(0, kShownBytes));
  }
  const std::string host = host_of(url);
  const bool zoned = !part_of(url.get(), CURLUPART_ZONEID).empty();
  const bool allowed = std::ranges::any_of(policy.domains, [&](const auto& one) { return is_of_domain(host, one); });
  if (zoned || !allowed) {
    return error(StatusCode::kUnsupported, "the URL's host is '{}'; wanted one of --media-allowed-domains",
                 host.substr(0, kShownBytes));
  }
  return url;
}

}  // namespace millrace::http
