#include "relay/tcp/connection_set.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "relay/op_table.h"
#include "relay/tcp/address.h"

namespace millrace::tcp {
namespace {

// For the counter of bad frames: what a correct peer never causes. A loss or a timeout may be the network's.
bool peers_fault(const Status& why) {
  return why.code() == StatusCode::kInvalidArgument || why.code() == StatusCode::kInternal ||
         why.code() == StatusCode::kUnsupported || why.code() == StatusCode::kUnauthenticated;
}

}  // namespace

ConnectionSet::ConnectionSet(Loop& loop, ConnectionConfig config, std::function<void()> bad_frame)
    : loop_(loop), config_(std::move(config)), bad_frame_(std::move(bad_frame)) {}

Result<Connection*> ConnectionSet::adopt(int fd, Phase phase) {
  const uint64_t id = next_id_++;
  // Else when connect() is over: until then the option would bound the attempt, which connect_timeout_ms does.
  if (phase != Phase::kConnecting) give_up_after(fd, config_.silent_ms);
  One one;
  one.connection = std::make_unique<Connection>(id, fd, phase, config_, output_pending_, monotonic_ms());
  one.events = phase == Phase::kConnecting ? uint32_t{EPOLLIN} | EPOLLOUT : uint32_t{EPOLLIN};
  // The id and not the pointer: an event of this turn may come behind the connection's end. On an error `one` closes
  // the socket with the connection.
  ASSIGN_OR_RETURN(one.loop_id, loop_.add(fd, one.events, [this, id](uint32_t events) { on_events(id, events); }));
  Connection* connection = one.connection.get();
  connections_.emplace(id, std::move(one));
  return connection;
}

Connection* ConnectionSet::find(uint64_t id) const {
  const auto at = connections_.find(id);
  return at == connections_.end() ? nullptr : at->second.connection.get();
}

void ConnectionSet::close(uint64_t id, const Status& why) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  // Out of the map before the user is called: it may close others, or ask find() for this one. The connection lives
  // until on_lost() returns.
  One one = std::move(at->second);
  connections_.erase(at);
  loop_.remove(one.loop_id);
  config_.user.on_lost(*one.connection, why);
}

void ConnectionSet::fail(Connection& c, const Status& why) {
  if (peers_fault(why)) bad_frame_();
  // A peer of another version, or one that did not prove the secret, gets a REFUSE with the reason.
  const bool refuse = why.code() == StatusCode::kUnsupported || why.code() == StatusCode::kUnauthenticated ||
                      why.code() == StatusCode::kNotFound;
  if (refuse && !config_.opener && c.phase() == Phase::kHandshake && c.refuse(why.code(), monotonic_ms()).ok()) {
    c.wake();
    return;
  }
  close(c.id(), why);
}

Status ConnectionSet::handle(Connection& c, uint32_t events) {
  const int64_t now_ms = monotonic_ms();
  if (c.phase() == Phase::kConnecting) {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return ok_status();
    // EPOLLERR and EPOLLHUP come with a refused connect(): SO_ERROR has the reason.
    RETURN_IF_ERROR(connect_result(c.fd()));
    give_up_after(c.fd(), config_.silent_ms);
    return c.connected();
  }
  // First in: a peer that has sent its REFUSE and closed is read to the end before a send fails on it.
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) RETURN_IF_ERROR(c.pump_in(now_ms));
  if ((events & EPOLLOUT) != 0) RETURN_IF_ERROR(c.pump_out(now_ms, true));
  return ok_status();
}

void ConnectionSet::on_events(uint64_t id, uint32_t events) {
  Connection* c = find(id);
  if (c == nullptr) return;
  const Status status = handle(*c, events);
  if (status.ok()) {
    c->wake();
  } else {
    fail(*c, status);
  }
}

void ConnectionSet::flush() {
  // A failure calls the user, which may queue output on others: until nothing is left.
  while (!output_pending_.empty()) {
    // wake() may name a connection more than once in a turn, also one that is gone by now.
    std::vector<uint64_t> ids = std::exchange(output_pending_, {});
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const uint64_t id : ids) {
      const auto at = connections_.find(id);
      if (at == connections_.end()) continue;
      One& one = at->second;
      Connection& c = *one.connection;
      // A connection that waits for space waits for the socket to become writable.
      const Status status = c.wants_out() ? ok_status() : c.pump_out(monotonic_ms(), false);
      if (!status.ok()) {
        fail(c, status);
        continue;
      }
      const bool out = c.wants_out() || c.phase() == Phase::kConnecting;
      const uint32_t events = EPOLLIN | (out ? uint32_t{EPOLLOUT} : 0u);
      if (events == one.events) continue;
      one.events = events;
      loop_.modify(one.loop_id, events);
    }
  }
}

int64_t ConnectionSet::check_time(int64_t now_ms) {
  int64_t due_ms = INT64_MAX;
  // Closed after the walk: close() erases from the map and calls the user.
  std::vector<std::pair<uint64_t, Status>> ended;
  for (auto& [id, one] : connections_) {
    const Status status = one.connection->check_time(now_ms, due_ms);
    one.connection->wake();
    if (!status.ok()) ended.emplace_back(id, status);
  }
  for (const auto& [id, why] : ended) close(id, why);
  return due_ms;
}

void ConnectionSet::compensate_pause(int64_t now_ms) {
  for (auto& [id, one] : connections_) one.connection->compensate_pause(now_ms);
}

void ConnectionSet::clear() {
  for (auto& [id, one] : connections_) loop_.remove(one.loop_id);
  connections_.clear();
  output_pending_.clear();
}

}  // namespace millrace::tcp
