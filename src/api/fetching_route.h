// Routes whose requests may name pictures and audio by URLs that are fetched first, with the client's connection
// watched meanwhile.
//
// Owner of the routes: the server. Thread safety: add_fetching_route() before the server starts.
#pragma once

#include <string>

#include "api/media_urls.h"
#include "api/routes.h"

namespace millrace::api {

// As PostHandler (api/routes.h), but run once more, on the bodies thread, when `urls` has the files that it lacked.
using FetchingHandler = Status (*)(ApiContext&, const http::Request&, const http::ResponderPtr&, MediaUrls& urls);

struct FetchingRoute {
  std::string pattern;  // of a POST
  FetchingHandler handle;
  http::Response (*render)(const Status& status, const http::Request& request);  // an error of handle()
  // Renders errors of the server itself; unset: as everywhere.
  std::function<http::Response(int status, std::string_view message, std::string_view request_id)> render_error =
      nullptr;
  // Whether a request is work for the bodies thread although its body is small; null: never.
  bool (*is_heavy)(ApiContext&, const http::Request&) = nullptr;
};

void add_fetching_route(ApiContext& context, FetchingRoute route);
// With the errors of OpenAI's endpoints.
void add_fetching_route(ApiContext& context, const std::string& pattern, FetchingHandler handle);

}  // namespace millrace::api
