// Gather: the results of several calls to the engine for one HTTP request. They come on any thread; when the last one
// is there, the request goes on on the io thread, or is answered with an error.
//
// Owner: the calls together (shared_ptr), then the io thread's last task. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/fields.h"
#include "base/status.h"
#include "http/server.h"

namespace millrace::api {

template <typename T>
class Gather : public std::enable_shared_from_this<Gather<T>> {
 public:
  using Done = std::function<void(std::vector<T>)>;

  // At least one result.
  Gather(http::Server& server, http::ResponderPtr responder, std::size_t count, Done done)
      : server_(server), responder_(std::move(responder)), done_(std::move(done)), results_(count), missing_(count) {
    CHECK(count > 0);  // else no result would ever end it
  }

  // Once for each index.
  void on_result(std::size_t index, Result<T> result) {
    {
      std::lock_guard lock(mutex_);
      CHECK(index < results_.size() && missing_ > 0);
      if (result.ok()) {
        results_[index] = std::move(result).value();
      } else {
        status_ = result.status();
      }
      if (--missing_ > 0) return;
    }
    server_.post([self = this->shared_from_this()] { self->finish(); });
  }

 private:
  void finish() {
    if (!status_.ok()) return static_cast<void>(responder_->send(error_response(field_error(status_))));
    done_(std::move(results_));
  }

  http::Server& server_;
  const http::ResponderPtr responder_;
  const Done done_;

  std::mutex mutex_;  // guards what follows
  std::vector<T> results_;
  std::size_t missing_;
  Status status_;
};

}  // namespace millrace::api
