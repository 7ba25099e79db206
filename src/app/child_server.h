// ChildServer: loads and runs the one server of a child process on a thread of its own, because the main thread waits
// for signals. Server has run(), which returns after stop().
//
// Owner: the command of a range of layers (range.cc), on its stack; the destructor joins the thread.
// Thread safety: all functions on the main thread; `load` and the server run on the other one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/status.h"

namespace millrace {

template <typename Server>
class ChildServer {
 public:
  using Load = std::function<Result<std::unique_ptr<Server>>()>;

  explicit ChildServer(Load load) : load_(std::move(load)) {
    thread_ = std::thread([this] {
      status_ = serve();
      ended_ = true;
    });
  }
  ~ChildServer() { thread_.join(); }

  bool ended() const { return ended_; }
  const Status& status() const { return status_; }  // after ended()
  void stop() {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (server_) server_->stop();
  }

 private:
  Status serve() {
    ASSIGN_OR_RETURN(std::unique_ptr<Server> server, load_());
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return ok_status();
      server_ = std::move(server);
    }
    server_->run();
    return ok_status();
  }

  const Load load_;
  std::mutex mutex_;
  std::unique_ptr<Server> server_;  // guarded by mutex_ until it runs
  bool stopping_ = false;           // guarded by mutex_
  std::atomic<bool> ended_{false};
  Status status_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace millrace
