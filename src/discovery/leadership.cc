#include "discovery/leadership.h"

#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace millrace {

Result<std::unique_ptr<Leadership>> Leadership::acquire(const EtcdName& name, const std::string& address,
                                                        const KeyWait& wait) {
  std::unique_ptr<Leadership> self(new Leadership(name, address));
  Leadership& leadership = *self;
  RETURN_IF_ERROR(leadership.connect(wait.cancelled));
  RETURN_IF_ERROR(wait_for_key(*leadership.client_, name.coordinator_key(), wait, [&]() -> Result<KeyLook> {
    ASSIGN_OR_RETURN(const EtcdEntry entry, leadership.try_to_lead());
    if (leadership.leads(entry)) return KeyLook{.done = true};
    return KeyLook{.missing = entry.value == address
                                  ? "an earlier process at this address leads until its lease is over"
                                  : entry.value.value_or("another server") + " leads",
                   .revision = entry.revision};
  }));
  RETURN_IF_ERROR(leadership.connect([&leadership] { return leadership.ending_.requested(); }));
  leadership.thread_ = std::thread([&leadership] { leadership.run(); });
  return self;
}

Leadership::~Leadership() {
  if (thread_.joinable()) {
    ending_.request();
    thread_.join();
  }
  if (lease_ == 0 || !connect(nullptr).ok()) return;
  // Where etcd does not answer, the lease runs out.
  if (const Status status = client_->revoke(lease_); !status.ok()) LOG_WARNING("discovery: {}", status.message());
}

Status Leadership::connect(std::function<bool()> cancelled) {
  ASSIGN_OR_RETURN(EtcdClient client, EtcdClient::open(name_, std::move(cancelled)));
  client_.emplace(std::move(client));
  return ok_status();
}

Result<EtcdEntry> Leadership::try_to_lead() {
  ASSIGN_OR_RETURN(EtcdEntry entry, client_->get(name_.coordinator_key()));
  // Also one that was written though its answer was lost on the way: the lease is known.
  if (entry.value) return entry;
  ASSIGN_OR_RETURN(lease_, client_->grant_lease(kLeadershipLeaseS));
  return client_->claim(name_.coordinator_key(), address_, lease_);
}

std::optional<std::string> Leadership::superseded() const {
  const std::lock_guard lock(mutex_);
  return superseded_;
}

void Leadership::run() {
  trace::name_thread("leadership");
  bool warned = false;
  while (ending_.pause(kLeadershipRenewMs) && !superseded()) {
    const Status status = renew();
    if (status.ok() && std::exchange(warned, false)) LOG_INFO("discovery: etcd answers again");
    if (status.ok() || status.code() == StatusCode::kCancelled || std::exchange(warned, true)) continue;
    LOG_WARNING("discovery: the lease of {} is not renewed, and will be when etcd answers: {}", name_.text,
                status.message());
  }
}

// The key is read too: what an operator has deleted is written again.
Status Leadership::renew() {
  ASSIGN_OR_RETURN(const bool alive, client_->keep_alive(lease_));
  if (!alive) LOG_WARNING("discovery: the lease of {} had run out", name_.text);
  ASSIGN_OR_RETURN(const EtcdEntry entry, try_to_lead());
  if (leads(entry)) return ok_status();
  const std::lock_guard lock(mutex_);
  superseded_ = entry.value.value_or("another server");
  return ok_status();
}

}  // namespace millrace
