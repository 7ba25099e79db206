#include "discovery/key_wait.h"

#include <chrono>
#include <thread>
#include <utility>

namespace millrace {

Status wait_for_key(EtcdClient& client, const std::string& key, const KeyWait& wait,
                    const std::function<Result<KeyLook>()>& look) {
  std::string reason;
  const auto wait_because = [&](const std::string& why) {
    if (std::exchange(reason, why) != why) wait.waiting(why);
  };
  while (true) {
    const Result<KeyLook> found = look();
    if (found.ok() && found->done) return ok_status();
    Status status = found.status();
    if (status.ok()) {
      wait_because(found->missing);
      status = client.wait_for_change(key, found->revision, kDiscoveryWaitMs);
      if (status.ok()) continue;
    }
    if (status.code() != StatusCode::kUnavailable) return status;
    wait_because(status.message());
    std::this_thread::sleep_for(std::chrono::milliseconds(kDiscoveryRetryMs));
    if (wait.cancelled()) return Status(StatusCode::kCancelled, "ended");
  }
}

}  // namespace millrace
