#include "api/fetching_route.h"

#include <memory>
#include <utility>

#include "api/error.h"
#include "api/fields.h"
#include "base/status.h"

namespace millrace::api {
namespace {

class FetchingCall : public std::enable_shared_from_this<FetchingCall> {
 public:
  FetchingCall(ApiContext& context, const FetchingRoute& route, http::RequestPtr request, http::ResponderPtr responder)
      : context_(context),
        route_(route),
        request_(std::move(request)),
        responder_(std::move(responder)),
        urls_(context.media_fetcher) {}

  void run() {
    const Status status = route_.handle(context_, *request_, responder_, urls_);
    if (urls_.wanted()) return fetch();
    if (!status.ok()) reject(status);
  }

 private:
  void fetch() {
    CHECK(context_.media_fetcher != nullptr);  // else MediaUrls has refused
    const auto fetch = std::make_shared<MediaFetch>(
        urls_.take_missing(), [call = shared_from_this()](const auto& done, const Status& status) {
          call->context_.server.post_aside([call, done, status] { call->on_fetched(*done, status); });
        });
    responder_->on_disconnect([weak = std::weak_ptr(fetch)] {
      if (const auto running = weak.lock()) running->cancel();
    });
    if (const Status status = context_.media_fetcher->start(fetch); !status.ok()) reject(status);
  }

  void on_fetched(MediaFetch& fetch, const Status& status) {
    if (responder_->disconnected()) return;
    if (!status.ok()) return reject(status);
    urls_.set_fetched(fetch.take_files());
    run();
  }

  void reject(const Status& status) {
    note_refusal(context_, responder_->label(), status);
    responder_->send(route_.render(status, *request_));
  }

  ApiContext& context_;
  const FetchingRoute& route_;
  const http::RequestPtr request_;
  const http::ResponderPtr responder_;
  MediaUrls urls_;
};

}  // namespace

void add_fetching_route(ApiContext& context, FetchingRoute route) {
  http::Route out{.method = "POST", .pattern = route.pattern, .render_error = route.render_error};
  const auto shared = std::make_shared<const FetchingRoute>(std::move(route));
  out.handler = [&context, shared](http::RequestPtr request, http::ResponderPtr responder) {
    const bool heavy = shared->is_heavy != nullptr && shared->is_heavy(context, *request);
    const auto call = std::make_shared<FetchingCall>(context, *shared, std::move(request), std::move(responder));
    if (!heavy) return call->run();
    context.server.post_aside([call] { call->run(); });
  };
  context.server.add_route(std::move(out));
}

void add_fetching_route(ApiContext& context, const std::string& pattern, FetchingHandler handle) {
  add_fetching_route(context, {.pattern = pattern, .handle = handle, .render = [](const Status& status, const auto&) {
                                 return error_response(field_error(status));
                               }});
}

}  // namespace millrace::api
