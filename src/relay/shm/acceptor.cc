#include "relay/shm/acceptor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "relay/shm/channel.h"
#include "wire/limits.h"

namespace millrace::shm {
namespace {

constexpr uint64_t kReadersBellId = 2;

}  // namespace

Result<std::unique_ptr<Acceptor>> Acceptor::make(const RelayOptions& options, const InstanceId& self, OpTable& table,
                                                 Writer& writer, Poller& poller, std::function<uint64_t()> next_id) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(options, self, table, writer, poller, std::move(next_id)));
  ASSIGN_OR_RETURN(acceptor->listener_, listen_at(self));
  ASSIGN_OR_RETURN(acceptor->bell_, Poller::make_bell());
  RETURN_IF_ERROR(poller.add(acceptor->listener_, kListenerId, EPOLLIN));
  // Edge-triggered: the eventfd is never read, so with a level it would be readable for ever. Each write is one edge.
  RETURN_IF_ERROR(poller.add(acceptor->bell_, kReadersBellId, EPOLLIN | EPOLLET));
  return acceptor;
}

bool Acceptor::on_event(const Poller::Event& event) {
  if (event.id == kReadersBellId) return true;  // the loop looks at the holds in every round
  if (event.id == kListenerId) {
    accept_all();
    return true;
  }
  const auto at = callers_.find(event.id);
  if (at == callers_.end()) return false;
  // First: of a welcomed reader this is the end, and one that died behind its Hello needs no hold table.
  if ((event.events & (EPOLLHUP | EPOLLERR)) != 0) {
    drop(event.id);
  } else if (!at->second.welcomed) {
    on_hello(event.id, at->second);
  } else {
    table_.count_bad_frame();
    // Not read: what is left in the socket would make it readable for ever.
    poller_.change(at->second.socket.get(), event.id, 0);  // EPOLLHUP comes all the same
  }
  return true;
}

void Acceptor::accept_all() {
  // The listener is level-triggered: the rest comes with the next wait(), after the holds were looked at.
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    int code = 0;
    Fd socket = accept_one(listener_, code);
    if (!socket.valid()) {
      if (code == 0) return;
      // Out of descriptors: the connection stays in the queue and would wake the loop at once, again and again. tick()
      // takes the listener back after kAcceptPauseMs.
      poller_.change(listener_.get(), kListenerId, 0);
      paused_until_ms_ = monotonic_ms() + kAcceptPauseMs;
      return;
    }
    // Before anything is read from it, and before it could be sent a descriptor of this relay's memory.
    if (!check_peer(socket).ok()) {
      table_.count_bad_frame();
      continue;
    }
    const uint64_t id = next_id_();
    if (!poller_.add(socket, id, EPOLLIN).ok()) continue;
    Caller& caller = callers_[id];
    caller.socket = std::move(socket);
    caller.due_ms = monotonic_ms() + silent_ms_;
    if (callers_.size() > wire::kMaxPeers) refuse(id, caller, Refusal::kTooManyPeers);
  }
}

// All fields are the peer's. The instance is compared last: its mismatch has an answer of its own, which ends the gets
// of that reader at once.
bool Acceptor::understood(const Packet& packet, const Hello& hello, Refusal& why) const {
  why = Refusal::kNotUnderstood;
  if (packet.kind != Packet::Kind::kMessage || packet.bytes != sizeof hello || hello.magic != kMagic ||
      hello.version != kVersion || hello.type != MessageType::kHello) {
    return false;
  }
  why = Refusal::kOtherInstance;
  return std::equal(self_.random.begin(), self_.random.end(), hello.writer);
}

void Acceptor::on_hello(uint64_t id, Caller& caller) {
  Hello hello;
  // Without descriptors: a reader has none to give, and those that it sends all the same the kernel closes.
  const Packet packet = receive(caller.socket, std::as_writable_bytes(std::span(&hello, 1)), false);
  if (packet.kind == Packet::Kind::kNothing) return;
  Refusal why{};
  if (!understood(packet, hello, why)) {
    table_.count_bad_frame();
    refuse(id, caller, why);
    return;
  }
  InstanceId reader;
  std::copy(std::begin(hello.reader), std::end(hello.reader), reader.random.begin());
  // Before the Welcome: a reader may write a hold as soon as it has the table, and a sweep() that did not know the
  // table would take the slot for free.
  Result<Writer::Share> share = writer_.add_reader(id, destination_hash(reader));
  if (!share.ok()) {
    refuse(id, caller, Refusal::kNoMemory);
    return;
  }
  // In the sequence in which Channel::make() takes them. The kernel duplicates them; the holds' own descriptor is
  // closed with `share`, and the writer's mapping keeps the memory.
  const std::array<int, kWelcomeFds> fds = {share->pool, share->state, share->holds.get(), bell_.get()};
  if (send(caller.socket, bytes_of(share->welcome), fds)) {
    caller.welcomed = true;
  } else {
    drop(id);  // it has no memory of ours, so it can hold nothing
  }
}

void Acceptor::refuse(uint64_t id, const Caller& caller, Refusal why) {
  Refused refused;
  refused.reason = why;
  // As a courtesy: where it cannot be sent at once, the reader sees the end of the connection alone.
  (void)send(caller.socket, bytes_of(refused), {});
  drop(id);
}

void Acceptor::drop(uint64_t id) {
  const auto at = callers_.find(id);
  CHECK(at != callers_.end());
  poller_.remove(at->second.socket.get());
  // Closes the socket. Then the reader's holds count as released or died, and puts that were for it alone end.
  callers_.erase(at);
  writer_.remove_reader(id);
}

int64_t Acceptor::tick(int64_t now_ms) {
  int64_t next = -1;
  const auto due = [&](int64_t at_ms) { next = next < 0 ? at_ms - now_ms : std::min(next, at_ms - now_ms); };
  if (paused_until_ms_ != 0) {
    if (now_ms >= paused_until_ms_) {
      paused_until_ms_ = 0;
      poller_.change(listener_.get(), kListenerId, EPOLLIN);
    } else {
      due(paused_until_ms_);
    }
  }
  // Collected first: drop() erases from the map that the loop walks.
  std::vector<uint64_t> silent;
  for (const auto& [id, caller] : callers_) {
    if (caller.welcomed) continue;
    if (now_ms >= caller.due_ms) {
      silent.push_back(id);
    } else {
      due(caller.due_ms);
    }
  }
  for (const uint64_t id : silent) {
    table_.count_bad_frame();
    drop(id);
  }
  return next;
}

void Acceptor::close() {
  for (const auto& [id, caller] : callers_) poller_.remove(caller.socket.get());
  callers_.clear();
  listener_.reset();
  bell_.reset();
}

}  // namespace millrace::shm
