// LiveView: the clients of GET /live/events, each of which gets one event when it comes and then one every
// kLivePeriodMs: the same for all of them, made once (api/live_event.h). While there are no clients, nothing is asked
// and nothing is made.
//
// One that does not read gets no further event until kMaxUnreadLiveBytes or fewer wait for it. All streams end when the
// server drains.
//
// Owner: its route. Thread safety: the io thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "api/routes.h"
#include "base/metrics.h"
#include "base/status.h"
#include "http/server.h"
#include "wire/messages.h"

namespace millrace::api {

inline constexpr std::size_t kMaxLiveClients = 8;
inline constexpr int64_t kLivePeriodMs = 500;    // between two events, and what it took to make one
inline constexpr int64_t kLiveTimeoutMs = 1000;  // that a scheduler has to reply
inline constexpr std::size_t kMaxUnreadLiveBytes = 256u << 10;

class LiveView : public std::enable_shared_from_this<LiveView> {
 public:
  // `context` outlives the server's threads.
  explicit LiveView(ApiContext& context);

  // The client gets events until it leaves. kResourceExhausted: there are kMaxLiveClients already; kUnavailable: the
  // server drains.
  Status add(const http::ResponderPtr& responder);

 private:
  void ask();
  void publish(const std::vector<wire::AdminReply>& replies);
  void drop_those_who_left();

  ApiContext& context_;
  Counter events_;
  Gauge clients_gauge_;
  std::vector<http::ResponderPtr> clients_;
  std::string last_event_;  // for one that comes; "": there is no client
  bool asking_ = false;     // for a client; the next event is under way, or its timer runs
};

}  // namespace millrace::api
