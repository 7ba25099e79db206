// Leadership: this server is the one that leads the pipeline of a name; the others of that name stand by.
//
// The process that writes the name's key first leads, and the key holds where its coordinator is. It goes with its
// lease, at most kLeadershipLeaseS after the server's last renewal, or at once where the server ends in order. An etcd
// that is away takes nothing from a server that leads: it goes on, and when etcd is back it writes the key again. Only
// if another one has it by then, it is superseded, and should end.
//
// Owner: app/serve.cc. Thread safety: acquire() on one thread; superseded() on any.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/status.h"
#include "discovery/ending.h"
#include "discovery/etcd_client.h"
#include "discovery/key_wait.h"

namespace millrace {

inline constexpr int kLeadershipLeaseS = 6;       // so three renewals may be lost
inline constexpr int kLeadershipRenewMs = 1'500;  // between two of them

class Leadership {
 public:
  // Waits until this server leads. `address`: where its coordinator is, "tcp://10.0.0.1:30100". kCancelled.
  static Result<std::unique_ptr<Leadership>> acquire(const EtcdName& name, const std::string& address,
                                                     const KeyWait& wait);
  ~Leadership();  // the key is gone: one that stands by leads

  // The address of the server that leads instead.
  std::optional<std::string> superseded() const;

 private:
  Leadership(EtcdName name, std::string address) : name_(std::move(name)), address_(std::move(address)) {}
  Status connect(std::function<bool()> cancelled);
  // The process that leads, and whether leads() is true of it.
  Result<EtcdEntry> try_to_lead();
  bool leads(const EtcdEntry& entry) const { return lease_ != 0 && entry.lease == lease_; }
  void run();
  Status renew();

  const EtcdName name_;
  const std::string address_;
  std::optional<EtcdClient> client_;  // of acquire()'s thread, then of thread_, then of the destructor's
  int64_t lease_ = 0;                 // the same
  mutable std::mutex mutex_;
  std::optional<std::string> superseded_;  // guarded by mutex_
  Ending ending_;
  std::thread thread_;
};

}  // namespace millrace
