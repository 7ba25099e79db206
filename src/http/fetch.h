// Fetches the body behind a URL with libcurl. What a client names is not trusted: no redirects, no proxies of the
// environment, no cookies, no credentials, no decompression; the address is checked when the socket is opened, after
// the look-up of the name, so a name whose address changes in between gains nothing.
//
// Thread safety: free functions that block the calling thread until the end, FetchPolicy::timeout at the latest.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "http/fetch_policy.h"

namespace millrace::http {

inline constexpr std::size_t kMaxFetchHeadBytes = 64 << 10;  // status lines and header fields of an answer

struct FetchControl {
  std::function<bool()> cancelled;                // asked at least once a second
  std::function<Status(std::size_t)> take_bytes;  // asked before so many more bytes are kept
};

// kInvalidArgument: of the URL, its server or what it sent; kTooLarge; kCancelled; what take_bytes() gives. A message
// never has the reason why a host could not be reached: a refused address, a closed port and an unknown name look the
// same.
Result<std::string> fetch(std::string_view url, const FetchPolicy& policy, const FetchControl& control);

}  // namespace millrace::http
