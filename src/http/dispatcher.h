// Dispatcher: calls the handlers of requests. Parsing megabytes of JSON on the io thread would hold up every stream, so
// the handler of a body over Limits::inline_body_bytes runs on the bodies thread: one at a time, first come first
// served. Limits::bodies_bytes bounds what waits for it.
//
// Owner: Context. Thread safety: dispatch() and run_aside() on the io thread; everything else on the thread that starts
// and stops the server.
#pragma once

#include <boost/asio/thread_pool.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "http/exchange.h"
#include "http/server.h"

namespace millrace::http {

class Dispatcher {
 public:
  explicit Dispatcher(std::size_t inline_body_bytes) : inline_body_bytes_(inline_body_bytes) {}

  // Starts the bodies thread. Before the first dispatch().
  void start();
  // Calls the handler before it returns, or later on the bodies thread; not at all where the client has left or stop()
  // was called before its turn. The route outlives the Dispatcher.
  void dispatch(const Route& route, RequestPtr request, std::shared_ptr<Exchange> exchange);
  // Runs it on the bodies thread, in its turn; not at all after stop(). On the io thread.
  void run_aside(std::function<void()> work);
  // Waits for the handler that the bodies thread runs. No other begins there afterwards.
  void stop();
  // After stop(), and after the last dispatch(): drops the requests that still wait, whose clients must be gone.
  void clear() { bodies_thread_.reset(); }
  bool on_bodies_thread() { return bodies_thread_->get_executor().running_in_this_thread(); }

 private:
  const std::size_t inline_body_bytes_;
  std::optional<boost::asio::thread_pool> bodies_thread_;
};

}  // namespace millrace::http
