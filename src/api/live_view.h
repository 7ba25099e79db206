// LiveView: the clients of GET /live/events, each of which gets one event when it comes and then one every
// kLivePeriodMs: the same for all of them, made once (api/live_event.h), with the log and how prompts begin for those
// that are trusted. While there are no clients, nothing is asked and nothing is made; while none is trusted, no line of
// the log and no prompt is kept.
//
// One that does not read gets no further event until kMaxUnreadLiveBytes or fewer wait for it. All streams end when the
// server drains.
//
// Owner: its route. Thread safety: the io thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/routes.h"
#include "base/log_tail.h"
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
  Status add(const http::ResponderPtr& responder, bool trusted);

 private:
  void ask();
  void admin(wire::AdminAction action, std::function<void(std::vector<wire::AdminReply>)> done);
  void ask_for_log();
  void publish();
  void drop_those_who_left();
  const std::string& event_for(bool trusted) const { return trusted ? last_trusted_event_ : last_event_; }

  struct Client {
    http::ResponderPtr responder;
    bool trusted = false;
  };

  ApiContext& context_;
  Counter events_;
  Gauge clients_gauge_;
  std::vector<Client> clients_;
  std::optional<LogFollower> log_;               // while there are trusted clients
  std::vector<wire::AdminReply> states_, logs_;  // of the stages, for the next event
  std::string last_event_, last_trusted_event_;  // for one that comes; "": it waits for the next
  bool asking_ = false;                          // for a client; the next event is under way, or its timer runs
};

}  // namespace millrace::api
