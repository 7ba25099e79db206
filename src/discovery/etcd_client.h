// EtcdClient: the four things that a pipeline wants of etcd's key-value store (version 3, its JSON gateway): leases, a
// key that only the first one writes, reading it, and waiting until it changes.
//
// Calls block, for kEtcdCallMs at most (wait_for_change: as long as it is given). The members are tried in turn, the
// one that answered last first. kUnavailable: none answered, and a later call may succeed; kCancelled; kInternal: what
// came is no answer of etcd's. kUnauthenticated: etcd refuses the user, or wants one; kPermissionDenied: the user may
// not do this.
//
// Where the name has a user, calls carry a token that etcd gave for the password. One that it takes no more is got
// anew, once for each call.
//
// Owner: the thread that uses it. Thread safety: one thread; `cancelled` is asked on it, at least once a second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "discovery/etcd_name.h"
#include "http/curl_handle.h"

namespace millrace {

inline constexpr long kEtcdConnectMs = 1'000;
inline constexpr long kEtcdCallMs = 2'000;
inline constexpr std::size_t kMaxEtcdAnswerBytes = 64 << 10;

// What a key holds at one revision of the store.
struct EtcdEntry {
  std::optional<std::string> value;  // none: the key is not there
  int64_t lease = 0;                 // that it goes with; 0: none
  int64_t revision = 0;
};

class EtcdClient {
 public:
  static Result<EtcdClient> open(EtcdName name, std::function<bool()> cancelled);

  Result<int64_t> grant_lease(int ttl_s);
  // False: it has run out.
  Result<bool> keep_alive(int64_t lease);
  Status revoke(int64_t lease);

  // Writes the key with this lease where it is not there. What it holds then: the lease shows whose it is.
  Result<EtcdEntry> claim(const std::string& key, const std::string& value, int64_t lease);
  Result<EtcdEntry> get(const std::string& key);
  // Until the key changes after this revision, or timeout_ms. A store that has forgotten the revision counts as a
  // change.
  Status wait_for_change(const std::string& key, int64_t revision, int timeout_ms);

 private:
  using Json = nlohmann::json;
  EtcdClient(EtcdName name, std::function<bool()> cancelled, http::CurlHandle curl);
  // `until`: where given, the answer is a stream that is read until it returns true for what has come.
  Result<std::string> post(std::string_view path, const Json& body, long timeout_ms,
                           const std::function<bool(std::string_view)>& until = {});
  Result<std::string> post_to_any(std::string_view path, const Json& body, long timeout_ms,
                                  const std::function<bool(std::string_view)>& until);
  Status authenticate();
  Result<std::string> post_to(const std::string& url, const std::string& body, long timeout_ms,
                              const std::function<bool(std::string_view)>& until);
  Result<EtcdEntry> read_entry(const Json& answer, const Json& range) const;

  EtcdName name_;
  std::function<bool()> cancelled_;
  http::CurlHandle curl_;
  std::size_t member_ = 0;  // that answered last
  std::string token_;       // of name_.user; "": none yet
};

}  // namespace millrace
