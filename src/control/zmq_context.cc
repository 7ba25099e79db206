#include "control/zmq_context.h"

#include <zmq.h>

#include <map>
#include <mutex>

#include "control/local_box.h"
#include "control/socket_service.h"

namespace millrace {

struct ZmqContext::InprocTable {
  struct Entry {
    std::shared_ptr<LocalBox> box;
    bool bound = false;  // else it waits for its reader
  };
  std::mutex mutex;
  std::map<std::string, Entry> entries;

  // Names whose reader is gone; with the lock held.
  void forget_closed() {
    std::erase_if(entries, [](const auto& entry) { return entry.second.box->closed(); });
  }
};

ZmqContext::ZmqContext() : handle_(zmq_ctx_new()), inproc_(std::make_unique<InprocTable>()) {
  CHECK(handle_ != nullptr);
  // Before the first socket: later it has no effect (zmq_ctx_set(3)).
  zmq_ctx_set(handle_, ZMQ_MAX_SOCKETS, kMaxZmqSockets);
  service_ = std::make_unique<SocketService>(handle_);
}

ZmqContext::~ZmqContext() {
  // First everything that waits is released, the service's thread among it; then the last frames have their time.
  zmq_ctx_shutdown(handle_);
  service_.reset();
  zmq_ctx_term(handle_);
}

Result<std::shared_ptr<LocalBox>> ZmqContext::bind_inproc(const std::string& name) {
  std::lock_guard lock(inproc_->mutex);
  inproc_->forget_closed();
  const auto found = inproc_->entries.find(name);
  if (found != inproc_->entries.end()) {
    if (found->second.bound) {
      return error(StatusCode::kConflict, "inproc://{} is bound already; wanted a name of its own", name);
    }
    // Outboxes may have been made before their reader: what they have sent waits in the box that is found here.
    found->second.bound = true;
    return found->second.box;
  }
  if (inproc_->entries.size() >= kMaxInprocNames) {
    return error(StatusCode::kResourceExhausted, "{} inproc names; wanted at most {}", inproc_->entries.size(),
                 kMaxInprocNames);
  }
  auto box = std::make_shared<LocalBox>(kMailboxCapacity);
  inproc_->entries[name] = {box, true};
  return box;
}

std::shared_ptr<LocalBox> ZmqContext::find_inproc(const std::string& name, bool keep) {
  std::lock_guard lock(inproc_->mutex);
  const auto found = inproc_->entries.find(name);
  if (found != inproc_->entries.end() && !found->second.box->closed()) {
    return found->second.bound || keep ? found->second.box : nullptr;
  }
  inproc_->forget_closed();
  // Behind forget_closed(): a name whose reader is gone does not count.
  if (!keep || inproc_->entries.size() >= kMaxInprocNames) return nullptr;
  auto box = std::make_shared<LocalBox>(kMailboxCapacity);
  inproc_->entries[name] = {box, false};
  return box;
}

}  // namespace millrace
