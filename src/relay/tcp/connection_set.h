// ConnectionSet: the connections of one side of a TCP relay (those that it opened, or those that it accepted): their
// events, their output, their time, their end.
//
// Owner: the channel. Thread safety: the loop's thread alone. find() gives a pointer that is good until the connection
// ends, which happens in close(), in flush(), in check_time() and after an error that a callback of its user returned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "relay/session/loop.h"
#include "relay/tcp/connection.h"

namespace millrace::tcp {

class ConnectionSet {
 public:
  ConnectionSet(Loop& loop, ConnectionConfig config, std::function<void()> bad_frame);

  void set_self(Identity self) { config_.self = std::move(self); }

  // Takes the socket over, also where it fails: then it is closed already, and its number may be another file's.
  Result<Connection*> adopt(int fd, Phase phase);
  Connection* find(uint64_t id) const;
  std::size_t size() const { return connections_.size(); }
  template <typename F>
  void for_each(F&& f) {
    for (auto& [id, one] : connections_) f(*one.connection);
  }

  void close(uint64_t id, const Status& why);
  // Sends what was queued. Once at the end of each turn of the loop.
  void flush();
  // Returns when it wants to be asked again.
  int64_t check_time(int64_t now_ms);
  void compensate_pause(int64_t now_ms);
  void clear();  // without calling the user

 private:
  struct One {
    std::unique_ptr<Connection> connection;
    uint64_t loop_id = 0;
    uint32_t events = 0;
  };
  void on_events(uint64_t id, uint32_t events);
  void fail(Connection& c, const Status& why);
  Status handle(Connection& c, uint32_t events);

  Loop& loop_;
  ConnectionConfig config_;
  const std::function<void()> bad_frame_;
  std::unordered_map<uint64_t, One> connections_;
  std::vector<uint64_t> output_pending_;
  uint64_t next_id_ = 1;
};

}  // namespace millrace::tcp
