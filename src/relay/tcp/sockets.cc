#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"

#include "relay/tcp/sockets.h"

namespace millrace::tcp {
namespace {

// The listener is level-triggered: what stays in its queue is accepted in the next turn, and links in use go on
// meanwhile.
constexpr int kAcceptsPerTurn = 16;

ConnectionConfig config_of(const Core& core, LinkUser& user, bool opener, bool carries_data) {
  return {user, {}, core.options.connect_timeout_ms, core.options.silent_ms, opener, carries_data};
}

}  // namespace

Sockets::Sockets(Core& core, LinkUser& writer, LinkUser& reader, bool carries_data)
    : core_(core),
      accepted_(core.loop, config_of(core, writer, false, carries_data), [&core] { core.table.count_bad_frame(); }),
      opened_(core.loop, config_of(core, reader, true, carries_data), [&core] { core.table.count_bad_frame(); }) {}

Sockets::~Sockets() { shut_down(); }

Status Sockets::open(const SocketAddress& listen) {
  ASSIGN_OR_RETURN(listener_, listen_at(listen, bound_));
  // Behind the bind: the address has the port that the kernel chose, and is a part of what a handshake proves.
  const Identity self{key_of(core_.instance), address(), core_.options.secret};
  accepted_.set_self(self);
  opened_.set_self(self);
  ASSIGN_OR_RETURN(listener_loop_id_, core_.loop.add(listener_, EPOLLIN, [this](uint32_t) { on_listener(); }));
  return ok_status();
}

Result<Target> Sockets::target_of(const InstanceId& instance, std::string_view endpoint) const {
  ASSIGN_OR_RETURN(const SocketAddress address, parse_host_port(endpoint));
  if (address.port() == 0) return invalid_argument("the descriptor names port 0");
  // The descriptor may come from anywhere: without a secret it must not make this process connect into a network.
  if (!address.loopback() && core_.options.secret.empty()) {
    return invalid_argument("the put is beyond this host, and there is no secret; wanted one");
  }
  Target target;
  target.instance = instance;
  target.endpoint = endpoint;
  target.key = format_instance(address, key_of(instance));
  target.loopback = address.loopback();
  return target;
}

Result<Link*> Sockets::connect(const Target& target) {
  if (opened_.size() >= kMaxOutbound) {
    return error(StatusCode::kUnavailable, "{} connections are open, the most that there may be", kMaxOutbound);
  }
  ASSIGN_OR_RETURN(const SocketAddress address, parse_host_port(target.endpoint));
  ASSIGN_OR_RETURN(const int fd, start_connect(address));
  ASSIGN_OR_RETURN(Connection* const connection, opened_.adopt(fd, Phase::kConnecting));
  // Before the first turn in which connect() can be over: send_hello() puts it into the HELLO.
  connection->peer.instance = key_of(target.instance);
  return connection;
}

void Sockets::close(const Link& link, const Status& why) {
  const auto& connection = static_cast<const Connection&>(link);
  // By the pointer as well, as each set counts its ids from 1.
  for (ConnectionSet* set : {&accepted_, &opened_}) {
    if (set->find(connection.id()) == &connection) return set->close(connection.id(), why);
  }
}

void Sockets::on_listener() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd = accept_one(listener_);
    if (fd < 0) {
      // The connection stays in the queue and the listener readable: without the pause the loop would spin on it until
      // a descriptor is free. Other errors are of the one connection (accept(2)); the next event accepts again.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        accept_again_ms_ = monotonic_ms() + kAcceptPauseMs;
        core_.loop.modify(listener_loop_id_, 0);
      }
      return;
    }
    // Accepted and closed at once where every connection is in use: the peer gets an end, not a timeout.
    if (accepted_.size() >= kMaxInbound && !evict_connection()) {
      ::close(fd);
      continue;
    }
    // Where it fails the peer gets an end as well: adopt() closes the socket in every case.
    (void)accepted_.adopt(fd, Phase::kHandshake);
  }
}

// Over the limit: first goes the one that has been in its handshake for longest, then the one that has been idle for
// longest.
bool Sockets::evict_connection() {
  const Connection* worst = nullptr;
  accepted_.for_each([&](const Connection& c) {
    if (c.ready() && c.busy()) return;
    if (worst == nullptr || (c.ready() != worst->ready() ? worst->ready() : c.used_ms < worst->used_ms)) worst = &c;
  });
  if (worst == nullptr) return false;
  accepted_.close(worst->id(), Status(StatusCode::kResourceExhausted, "too many connections"));
  return true;
}

void Sockets::flush() {
  opened_.flush();
  accepted_.flush();
}

int64_t Sockets::check_time(int64_t now_ms) {
  int64_t due_ms = std::min(accepted_.check_time(now_ms), opened_.check_time(now_ms));
  if (accept_again_ms_ != 0 && now_ms >= accept_again_ms_) {
    accept_again_ms_ = 0;
    core_.loop.modify(listener_loop_id_, EPOLLIN);
  }
  if (accept_again_ms_ != 0) due_ms = std::min(due_ms, accept_again_ms_);
  return due_ms;
}

void Sockets::shut_down() {
  opened_.clear();
  accepted_.clear();  // releases the frames in flight
  if (listener_ < 0) return;
  // Before the close: afterwards the number may be another file's, and remove() would take that one out of epoll.
  core_.loop.remove(listener_loop_id_);
  ::close(std::exchange(listener_, -1));
}

}  // namespace millrace::tcp
