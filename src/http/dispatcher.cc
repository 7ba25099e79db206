#include "http/dispatcher.h"

#include <pthread.h>

#include <boost/asio/post.hpp>

#include "base/log.h"

namespace millrace::http {
namespace {

// The responder is made here and not earlier: one that went down with a request that never ran would count as a handler
// that forgot to answer.
void call(const Route& route, RequestPtr request, const std::shared_ptr<Exchange>& exchange) {
  try {
    route.handler(std::move(request), make_responder(exchange));
  } catch (const std::exception& problem) {
    LOG_ERROR("the handler of {} {} failed: {}", route.method, route.pattern, problem.what());
    if (!exchange->send({.status = 500, .content_type = ""})) exchange->abort();
  }
}

}  // namespace

void Dispatcher::start() {
  bodies_thread_.emplace(1);
  boost::asio::post(*bodies_thread_, [] { pthread_setname_np(pthread_self(), "http-bodies"); });
}

void Dispatcher::dispatch(const Route& route, RequestPtr request, std::shared_ptr<Exchange> exchange) {
  if (request->body.size() <= inline_body_bytes_) return call(route, std::move(request), exchange);
  boost::asio::post(*bodies_thread_, [&route, request = std::move(request), exchange = std::move(exchange)]() mutable {
    if (!exchange->disconnected()) call(route, std::move(request), exchange);
  });
}

void Dispatcher::run_aside(std::function<void()> work) { boost::asio::post(*bodies_thread_, std::move(work)); }

void Dispatcher::stop() {
  bodies_thread_->stop();
  bodies_thread_->join();
}

}  // namespace millrace::http
