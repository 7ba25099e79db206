// What is decided about a request before its body is read: errors, preflights, access. No sockets.
//
// The order matters: a request that may not pass learns nothing but that (401 before 404 and 405), and nothing reads a
// body that will be refused.
//
// Thread safety: free functions over immutable tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "http/gate.h"
#include "http/request_head.h"
#include "http/route_table.h"
#include "http/server.h"

namespace millrace::http {

// An error as the route renders it, or ServerOptions::render_error where there is no route or it does not; with the
// header fields that belong to the status.
Response render_error(const ServerOptions& options, const Route* route, const HttpError& error,
                      std::string_view request_id);

// The body limit of a matched route.
uint64_t body_limit(const ServerOptions& options, const Route* route);

// The response that ends the request without its handler, or nothing when the handler may run.
std::optional<Response> admit(const ServerOptions& options, const Gate& gate, const RouteTable::Match& match,
                              const RequestHead& head, bool over_unix_socket, std::string_view request_id);

// The client's x-request-id when it is 1 to 128 of [A-Za-z0-9._:-], else nullptr.
const std::string* usable_request_id(const RequestHead& head);

}  // namespace millrace::http
