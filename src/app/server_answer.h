// What a server answers to the commands that talk to one. Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "http/client.h"

namespace millrace {

// What a server sends must not move the cursor or ring the bell: no control characters but tab and line feed. The text
// is complete UTF-8, so the controls U+0080 to U+009F are C2 and their own byte.
std::string printable(std::string_view text);

// The body of a good answer, or the server's message of a bad one: "HTTP 401: ...".
Result<Json> checked(const http::ClientResponse& response);

}  // namespace millrace
