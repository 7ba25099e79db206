#include "discovery/coordinator_locator.h"

#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace millrace {

Result<std::unique_ptr<CoordinatorLocator>> CoordinatorLocator::find(const EtcdName& name, const KeyWait& wait) {
  std::unique_ptr<CoordinatorLocator> self(new CoordinatorLocator(name));
  ASSIGN_OR_RETURN(EtcdClient client, EtcdClient::open(name, wait.cancelled));
  RETURN_IF_ERROR(wait_for_key(client, name.coordinator_key(), wait, [&]() -> Result<KeyLook> {
    ASSIGN_OR_RETURN(const EtcdEntry entry, client.get(name.coordinator_key()));
    self->address_ = entry.value.value_or("");
    self->revision_ = entry.revision;
    return KeyLook{entry.value.has_value(), "no server of that name leads yet", entry.revision};
  }));
  return self;
}

CoordinatorLocator::~CoordinatorLocator() {
  if (!thread_.joinable()) return;
  ending_.request();
  thread_.join();
}

void CoordinatorLocator::start(std::function<void(const std::string& address)> moved) {
  thread_ = std::thread([this, moved = std::move(moved)] { run(moved); });
}

void CoordinatorLocator::run(const std::function<void(const std::string&)>& moved) {
  trace::name_thread("discovery");
  auto client = EtcdClient::open(name_, [this] { return ending_.requested(); });
  if (!client.ok()) {
    LOG_ERROR("discovery: {}", client.status().message());
    return;
  }
  const auto next = [&]() -> Status {
    RETURN_IF_ERROR(client->wait_for_change(name_.coordinator_key(), revision_, kDiscoveryWaitMs));
    ASSIGN_OR_RETURN(const EtcdEntry entry, client->get(name_.coordinator_key()));
    revision_ = entry.revision;
    if (!entry.value || *entry.value == address_) return ok_status();
    address_ = *entry.value;
    moved(address_);
    return ok_status();
  };
  bool warned = false;
  while (!ending_.requested()) {
    const Status status = next();
    if (status.ok()) {
      warned = false;
      continue;
    }
    if (status.code() == StatusCode::kCancelled) return;
    if (!std::exchange(warned, true)) {
      LOG_WARNING("discovery: {} is not followed until etcd answers: {}", name_.text, status.message());
    }
    if (!ending_.pause(kDiscoveryRetryMs)) return;
  }
}

}  // namespace millrace
