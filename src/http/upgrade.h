// The request that asks for a WebSocket: whether it is a good one (RFC 6455 4.2.1), and the subprotocols it offers.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http/request_head.h"

namespace millrace::http {

// What browsers put a key behind, since they cannot set Authorization: one of the subprotocols that they offer.
inline constexpr std::string_view kKeyProtocol = "openai-insecure-api-key.";

// 400, or 426 for a request that asks for no WebSocket or for another version of it.
HttpError check_upgrade(const RequestHead& head);

std::vector<std::string_view> offered_protocols(const Headers& headers);

}  // namespace millrace::http
