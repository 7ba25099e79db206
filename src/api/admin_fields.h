// What the operator's admin commands have in common, whether they go to text serving's schedulers or to a pipeline's
// stages. Thread safety: free functions.
#pragma once

#include "base/json.h"
#include "base/status.h"
#include "http/message.h"

namespace millrace::api {

inline constexpr double kMaxCommandS = 600;           // that a client may wait for a command
inline constexpr int64_t kProfileTimeoutMs = 30'000;  // to write the file of a long trace

// The body of a command: an object, or nothing at all.
Result<Json> parse_command(const http::Request& request);

// `timeout` in seconds, from the body or, before it, from the query. On absence timeout_s is left as it is; the caller
// checks its range. kInvalidArgument for what is not a number.
Status read_command_timeout(const http::Request& request, const Json& body, double& timeout_s);

// How long a flush of the cache waits for idleness: `timeout` of the request, 0 to kMaxCommandS, 0 where it is absent.
Result<int64_t> read_flush_timeout_ms(const http::Request& request);

// What would limit or change the trace must not be dropped in silence; clients choose no folder on the server.
Status check_profile_fields(const Json& body);

}  // namespace millrace::api
