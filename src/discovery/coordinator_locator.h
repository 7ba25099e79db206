// CoordinatorLocator: where the coordinator of a pipeline is, as the server that leads has written it (leadership.h),
// and where it goes.
//
// Owner: app/pipeline_stage.cc. Thread safety: find() and start() on one thread; `moved` is called on a thread of
// its own, one call at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "discovery/ending.h"
#include "discovery/etcd_client.h"
#include "discovery/key_wait.h"

namespace millrace {

class CoordinatorLocator {
 public:
  // Waits until a server leads. kCancelled.
  static Result<std::unique_ptr<CoordinatorLocator>> find(const EtcdName& name, const KeyWait& wait);
  ~CoordinatorLocator();

  // As find() found it.
  const std::string& address() const { return address_; }
  // From now on, `moved` gets each other address. One that is gone without a successor stays the last one.
  void start(std::function<void(const std::string& address)> moved);

 private:
  explicit CoordinatorLocator(EtcdName name) : name_(std::move(name)) {}
  void run(const std::function<void(const std::string&)>& moved);

  const EtcdName name_;
  std::string address_;
  int64_t revision_ = 0;  // at which that was read
  Ending ending_;
  std::thread thread_;
};

}  // namespace millrace
