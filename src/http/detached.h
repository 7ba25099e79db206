// DetachedExchanges: answers of a server that no client waits for. What such a responder is given goes nowhere; the
// server waits for them when it drains, and reports that the client is gone when it stops, so that what makes an answer
// needs not to know whether there is a client.
//
// Owner: the server. Thread safety: all functions from any thread; those that end them run callbacks, and belong to the
// io thread.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "http/exchange.h"

namespace millrace::http {

class DetachedExchanges {
 public:
  ResponderPtr add(std::shared_ptr<Hub> hub, RequestLabel label);
  // Whether one has not ended.
  bool any_open() const;
  // As client_gone() of each; those that are added later are gone from the beginning.
  void end_all();

 private:
  mutable std::mutex mutex_;
  bool ended_ = false;
  std::vector<std::weak_ptr<Exchange>> exchanges_;
};

}  // namespace millrace::http
