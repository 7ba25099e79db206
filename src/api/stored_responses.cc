// The routes of stored responses: GET and DELETE /v1/responses/{id}, its /input_items and its /cancel.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "api/content_blocks.h"
#include "api/error.h"
#include "api/fields.h"
#include "api/reply_format.h"
#include "api/routes.h"
#include "api/stored_input.h"
#include "base/ordered_json.h"
#include "base/status.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kDefaultListed = 20, kMaxListed = 100;  // items of one answer

using StoredHandler = Status (*)(ApiContext&, const http::Request&, const StoredResponsePtr&, http::Response&);

Status get_response(ApiContext& /*context*/, const http::Request& request, const StoredResponsePtr& response,
                    http::Response& out) {
  std::string stream;
  if (request.query_value("stream", stream) && stream != "false") {
    return error(StatusCode::kUnsupported, "stream is '{}'; wanted false: a stored response is given in one",
                 stream.substr(0, kShownBytes));
  }
  out.body = response->body;
  return ok_status();
}

Status delete_response(ApiContext& context, const http::Request& /*request*/, const StoredResponsePtr& response,
                       http::Response& out) {
  context.state->responses.forget(response->id, unix_seconds());
  if (response->background == Background::kRunning) context.state->live.abort(response->id);
  out.body = OrderedJson{{"id", response->id}, {"object", "response"}, {"deleted", true}}.dump();
  return ok_status();
}

// A response in the background; one that has ended stays as it is. What was generated is stored when the engine has
// ended it.
Status cancel_response(ApiContext& context, const http::Request& /*request*/, const StoredResponsePtr& response,
                       http::Response& out) {
  if (response->background == Background::kNo) {
    return error(StatusCode::kUnsupported,
                 "response '{}' was not created with background: true; a running response ends when its client hangs "
                 "up, or by /abort_request",
                 response->id);
  }
  ResponseStore& store = context.state->responses;
  OrderedJson cancelled = parse_ordered_json(response->body);
  cancelled["status"] = "cancelled";
  if (store.end_running(response->id, cancelled.dump(), unix_seconds())) context.state->live.abort(response->id);
  const StoredResponsePtr now = store.find(response->id, unix_seconds());
  out.body = (now ? now : response)->body;
  return ok_status();
}

struct Listing {
  std::string after;
  bool ascending = false;
  int limit = kDefaultListed;
};

Result<Listing> read_listing(const http::Request& request) {
  Listing out;
  std::string sequence, limit;
  request.query_value("after", out.after);
  if (request.query_value("order", sequence) && sequence != "asc" && sequence != "desc") {
    return invalid_argument("order is '{}'; wanted asc or desc", sequence.substr(0, kShownBytes));
  }
  out.ascending = sequence == "asc";
  if (!request.query_value("limit", limit)) return out;
  const auto [end, code] = std::from_chars(limit.data(), limit.data() + limit.size(), out.limit);
  if (code == std::errc() && end == limit.data() + limit.size() && out.limit >= 1 && out.limit <= kMaxListed)
    return out;
  return invalid_argument("limit is '{}'; wanted 1 to {}", limit.substr(0, kShownBytes), kMaxListed);
}

Status list_items(ApiContext& /*context*/, const http::Request& request, const StoredResponsePtr& response,
                  http::Response& out) {
  ASSIGN_OR_RETURN(const Listing listing, read_listing(request));
  OrderedJson items = input_items(*response);
  if (!listing.ascending) std::reverse(items.begin(), items.end());
  auto begin = items.begin();
  if (!listing.after.empty()) {
    begin =
        std::find_if(items.begin(), items.end(), [&](const OrderedJson& item) { return item["id"] == listing.after; });
    if (begin == items.end()) {
      return invalid_argument("after is '{}'; wanted the id of an item", listing.after.substr(0, kShownBytes));
    }
    ++begin;
  }
  const auto end = items.end() - begin > listing.limit ? begin + listing.limit : items.end();
  OrderedJson data = OrderedJson::array();
  for (auto item = begin; item != end; ++item) data.push_back(*item);
  const OrderedJson first = data.empty() ? OrderedJson() : data.front()["id"];
  const OrderedJson last = data.empty() ? OrderedJson() : data.back()["id"];
  out.body = OrderedJson{{"object", "list"},
                         {"data", std::move(data)},
                         {"first_id", first},
                         {"last_id", last},
                         {"has_more", end != items.end()}}
                 .dump();
  return ok_status();
}

http::Handler stored_route(ApiContext& context, StoredHandler handle) {
  CHECK(handle != nullptr);
  return [&context, handle](const http::RequestPtr& request, const http::ResponderPtr& responder) {
    const std::string_view id = request->param("id");
    const ResponseStore& store = context.state->responses;
    const StoredResponsePtr response = store.find(id, unix_seconds());
    if (!response) {
      responder->send(
          error_response({.http_status = 404,
                          .message = fmt::format("Response with id '{}' not found: {}", id.substr(0, kShownBytes),
                                                 text_of(store.why_gone(id, unix_seconds())))}));
      return;
    }
    http::Response out;
    const Status status = handle(context, *request, response, out);
    responder->send(status.ok() ? std::move(out) : error_response(field_error(status)));
  };
}

void no_compaction(const http::RequestPtr& /*request*/, const http::ResponderPtr& responder) {
  responder->send(error_response({.http_status = 404,
                                  .message = "Compacted responses are not served; wanted previous_response_id, or the "
                                             "earlier items in input, within the model's context"}));
}

}  // namespace

void add_stored_response_routes(ApiContext& context, const std::string& path) {
  const auto add = [&](const char* method, const char* rest, StoredHandler handle) {
    context.server.add_route({.method = method, .pattern = path + rest, .handler = stored_route(context, handle)});
  };
  add("GET", "/{id}", get_response);
  add("DELETE", "/{id}", delete_response);
  add("POST", "/{id}/cancel", cancel_response);
  add("GET", "/{id}/input_items", list_items);
  add_compaction_refusal(context.server, path);
}

void add_compaction_refusal(http::Server& server, const std::string& path) {
  server.add_route({.method = "POST", .pattern = path + "/compact", .handler = no_compaction});
}

}  // namespace millrace::api
