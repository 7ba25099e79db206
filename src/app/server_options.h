// The options of the HTTP server, from the command line, for both forms of `serve`. Thread safety: free functions.
#pragma once

#include <cstddef>
#include <string>

#include "app/options.h"
#include "http/server.h"

namespace millrace {

http::ServerOptions server_options(const ServeOptions& options, std::size_t connections);

// An address that opens in a browser of this host, also where the server listens on every address.
std::string local_url(const ServeOptions& options, const http::Server& server);

// A warning where everyone who reaches this host may use the model. `server` has started.
void warn_of_open_server(const ServeOptions& options, const http::Server& server);

}  // namespace millrace
