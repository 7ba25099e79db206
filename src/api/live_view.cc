#include "api/live_view.h"

#include <algorithm>
#include <map>
#include <utility>

#include "api/error.h"
#include "api/fields.h"
#include "api/live_event.h"
#include "stages/log_lines.h"

namespace millrace::api {
namespace {

// Of this process first, then of the others whose stages have replied, each once.
std::vector<LiveLog> logs_of(const LogFollower& local, const std::vector<wire::AdminReply>& replies) {
  std::vector<LiveLog> out{{.stage = "server", .lines = local.lines()}};
  std::map<std::string, std::size_t> known{{log_process(), 0}};
  for (const wire::AdminReply& reply : replies) {
    if (reply.code != StatusCode::kOk) continue;
    auto log = parse_log_lines(reply.message);
    if (!log.ok()) continue;
    const auto [found, is_new] = known.emplace(log->process, out.size());
    if (is_new) {
      out.push_back({.stage = reply.stage, .lines = std::move(log->lines)});
    } else if (found->second > 0) {
      out[found->second].stage += ", " + reply.stage;
    }
  }
  return out;
}

}  // namespace

LiveView::LiveView(ApiContext& context)
    : context_(context),
      events_(context.state->metrics.counter("live_view_events_total",
                                             "States of the engine that were put together for /live/events.")),
      clients_gauge_(context.state->metrics.gauge("live_view_clients", "Clients of /live/events.")) {}

Status LiveView::add(const http::ResponderPtr& responder, bool trusted) {
  drop_those_who_left();
  if (clients_.size() >= kMaxLiveClients) {
    return error(StatusCode::kResourceExhausted, "{} clients look at /live/events, the limit; try again later",
                 clients_.size());
  }
  if (context_.engine.health().draining) return error(StatusCode::kUnavailable, "the server is shutting down");
  if (!responder->start_sse()) return ok_status();  // it has left
  responder->on_disconnect([self = weak_from_this()] {
    if (const auto view = self.lock()) view->drop_those_who_left();
  });
  clients_.push_back({responder, trusted});
  if (trusted && !log_) {
    log_.emplace();
    context_.state->live.show_prompts(true);
  }
  clients_gauge_.set(static_cast<double>(clients_.size()));
  if (std::exchange(asking_, true)) {
    if (const std::string& event = event_for(trusted); !event.empty()) responder->write(event);
  } else {
    ask();
  }
  return ok_status();
}

// The replies come on another thread, and perhaps when the server is gone.
void LiveView::ask() {
  drop_those_who_left();
  if (clients_.empty()) {
    asking_ = false;
    return;
  }
  states_.clear();
  logs_.clear();
  if (context_.engine.health().draining) return publish();  // the schedulers may be gone
  admin(wire::AdminAction::kShowState, [this](std::vector<wire::AdminReply> replies) {
    states_ = std::move(replies);
    ask_for_log();
  });
}

void LiveView::ask_for_log() {
  if (!log_ || context_.engine.health().draining) return publish();
  admin(wire::AdminAction::kShowLog, [this](std::vector<wire::AdminReply> replies) {
    logs_ = std::move(replies);
    publish();
  });
}

// `done` is called on the io thread, unless the view is gone by then.
void LiveView::admin(wire::AdminAction action, std::function<void(std::vector<wire::AdminReply>)> done) {
  context_.engine.admin(action, kLiveTimeoutMs,
                        [self = weak_from_this(), done = std::move(done)](std::vector<wire::AdminReply> replies) {
                          const auto view = self.lock();
                          if (!view) return;
                          view->context_.server.post([self, done, replies = std::move(replies)] {
                            if (const auto still = self.lock()) done(replies);
                          });
                        });
}

void LiveView::publish() {
  drop_those_who_left();
  const bool draining = context_.engine.health().draining;
  if (!clients_.empty()) {
    const std::vector<LiveLog> log = log_ ? logs_of(*log_, logs_) : std::vector<LiveLog>();
    const LiveFacts facts{.period_ms = kLivePeriodMs, .clients = clients_.size(), .log = log_ ? &log : nullptr};
    const LiveEvent event = live_event(context_, states_, facts);
    last_event_.clear();
    last_trusted_event_.clear();
    http::append_sse_data(last_event_, event.shown);
    if (log_) http::append_sse_data(last_trusted_event_, event.trusted);
    events_.add();
    for (const Client& client : clients_) {
      if (draining) {
        client.responder->end(event_for(client.trusted));
      } else if (client.responder->pending_bytes() <= kMaxUnreadLiveBytes) {
        client.responder->write(event_for(client.trusted));
      }
    }
  }
  if (draining) clients_.clear();
  context_.server.post_after(std::chrono::milliseconds(kLivePeriodMs), [self = weak_from_this()] {
    if (const auto view = self.lock()) view->ask();
  });
}

void LiveView::drop_those_who_left() {
  std::erase_if(clients_, [](const Client& client) { return client.responder->disconnected(); });
  clients_gauge_.set(static_cast<double>(clients_.size()));
  if (clients_.empty()) last_event_.clear();
  if (log_ && std::none_of(clients_.begin(), clients_.end(), [](const Client& client) { return client.trusted; })) {
    log_.reset();
    last_trusted_event_.clear();
    context_.state->live.show_prompts(false);
  }
}

namespace {

// The route takes none; a handler of a large body would run on the bodies thread, and the view is the io thread's.
constexpr std::size_t kMaxLiveBodyBytes = 1024;

Status handle(LiveView& view, const http::Request& request, const http::ResponderPtr& responder) {
  if (request.method != "HEAD") return view.add(responder, request.trusted);
  responder->send({.content_type = std::string(http::kEventStream)});
  return ok_status();
}

}  // namespace

void add_live_routes(ApiContext& context) {
  context.server.add_route({.method = "GET",
                            .pattern = "/live/events",
                            .access = http::Access::kUser,
                            .same_origin = true,  // a cross-origin page must not use a client slot
                            .max_body_bytes = kMaxLiveBodyBytes,
                            .handler = [view = std::make_shared<LiveView>(context)](auto request, auto responder) {
                              const Status status = handle(*view, *request, responder);
                              if (!status.ok()) responder->send(error_response(field_error(status)));
                            }});
}

}  // namespace millrace::api
