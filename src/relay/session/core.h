// Core: what one relay consists of: its table of open puts and gets, its loop, its channel, and the two sides of the
// session. The loop's thread keeps it alive, because a transport that hangs is abandoned together with it.
//
// Owner: the relay and its thread together. Threads: run() is the loop's thread; the members document the rest. Lock
// order: none of the writer's mutex, the loop's and the op table's is held while another one is taken.
#pragma once

#include <atomic>
#include <memory>

#include "relay/op_table.h"
#include "relay/session/channel.h"
#include "relay/session/loop.h"
#include "relay/session/reader.h"
#include "relay/session/writer.h"

namespace millrace::session {

struct Core final : LoopUser {
  explicit Core(const RelayOptions& given);
  ~Core() override;

  // The thread: until stop(), then a short farewell, and the transport's end. False: something was abandoned.
  bool run();
  void stop();

  bool running() override;
  bool poll() override { return channel->poll(); }
  bool may_sleep() override { return channel->may_sleep(); }
  int64_t nap_us() const override;
  int64_t turn_end(int64_t now_ms) override;

  const RelayOptions options;
  const InstanceId instance = make_instance_id();
  Loop loop;
  OpTable table;
  Writer writer;
  Reader reader;
  std::unique_ptr<Channel> channel;  // set before run(); goes first, as its links name the writer and the reader

 private:
  bool ended(RelayOp op, bool is_put, const Status& status);

  std::atomic<bool> stopping_{false};
  int64_t farewell_until_ms_ = 0;  // 0: it has not begun
  int64_t due_ms_ = INT64_MAX;
  int64_t swept_ms_ = 0;
  int64_t turn_ms_ = 0;  // of the last turn
};

}  // namespace millrace::session
