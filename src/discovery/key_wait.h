// Waiting for what a key of etcd is to hold. Thread safety: the thread that owns the client.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "discovery/etcd_client.h"

namespace millrace {

inline constexpr int kDiscoveryRetryMs = 500;    // between two tries where etcd does not answer
inline constexpr int kDiscoveryWaitMs = 10'000;  // of one wait for a change; then the key is read again

struct KeyLook {
  bool done = false;
  std::string missing;   // what is not there yet, for a person
  int64_t revision = 0;  // at which that was so
};

struct KeyWait {
  std::function<bool()> cancelled;
  std::function<void(const std::string& why)> waiting;  // what is missing, or why etcd is not reached; on each change
};

// Until `look` is done: it is called at the start, and whenever the key changes or etcd answers again. kCancelled, and
// what `look` returned, kUnavailable apart.
Status wait_for_key(EtcdClient& client, const std::string& key, const KeyWait& wait,
                    const std::function<Result<KeyLook>()>& look);

}  // namespace millrace
