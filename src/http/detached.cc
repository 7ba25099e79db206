#include "http/detached.h"

#include <algorithm>
#include <utility>

namespace millrace::http {

ResponderPtr DetachedExchanges::add(std::shared_ptr<Hub> hub, RequestLabel label) {
  auto exchange = std::make_shared<Exchange>(std::move(hub), nullptr);
  exchange->set_label(std::move(label));
  bool gone = false;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(exchanges_, [](const auto& each) { return each.expired(); });
    exchanges_.push_back(exchange);
    gone = ended_;
  }
  if (gone) exchange->client_gone();
  return make_responder(std::move(exchange));
}

bool DetachedExchanges::any_open() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(exchanges_, [](const auto& each) {
    const auto exchange = each.lock();
    return exchange && !exchange->ended() && !exchange->disconnected();
  });
}

void DetachedExchanges::end_all() {
  std::vector<std::weak_ptr<Exchange>> exchanges;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    exchanges = exchanges_;
  }
  for (const auto& each : exchanges) {
    if (const auto exchange = each.lock()) exchange->client_gone();
  }
}

}  // namespace millrace::http
