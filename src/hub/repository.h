// Repository: what a hub has of a model at one commit: its files, their sizes and checksums. And how files are asked
// for.
//
// Thread safety: values and free functions; a Connection belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/connection.h"
#include "hub/retry.h"

namespace millrace::hub {

inline constexpr std::size_t kMaxListingBytes = 32 << 20;  // of the hub's answer
inline constexpr std::size_t kMaxRepositoryFiles = 100'000;
inline constexpr std::size_t kMaxFileNameBytes = 1024;     // of a path below the repository
inline constexpr std::size_t kMaxFileNamePartBytes = 255;  // of one name in it
inline constexpr uint64_t kMaxFileBytes = uint64_t{1} << 44;

struct RemoteFile {
  std::string name;  // a relative path without "." and ".."
  uint64_t size = 0;
  std::string etag;  // its checksum (hub/digest.h), and its name in the cache; "": the listing has none
};

struct Repository {
  std::string name;    // "ORG/NAME"
  std::string commit;  // 40 hexadecimal digits
  std::vector<RemoteFile> files;

  const RemoteFile* find(std::string_view file) const;
};

// kInvalidArgument: a name that would leave its folder, or that no file system has.
Status check_file_name(std::string_view name);

// The hub's listing. kInvalidArgument names the field, the value seen and the value wanted.
Result<Repository> parse_repository(std::string_view text, const std::string& name);

class Hub {
 public:
  Hub(HubSettings settings, RetryPolicy policy, TransferControl control)
      : settings_(std::move(settings)), policy_(policy), control_(std::move(control)) {}

  Result<Connection> connect() const { return Connection::open(settings_, control_.cancelled); }
  Result<Repository> fetch_repository(Connection& connection, const std::string& name,
                                      const std::string& revision) const;
  // Size and checksum of a file for which the listing has none.
  Status complete(Connection& connection, const Repository& repository, RemoteFile& file) const;
  // Bytes [0, count) of a file in memory, or fewer where it is shorter.
  Result<std::string> fetch_start(Connection& connection, const Repository& repository, const std::string& file,
                                  uint64_t count) const;

  std::string file_url(const Connection& connection, const Repository& repository, const std::string& file) const;
  const HubSettings& settings() const { return settings_; }
  const RetryPolicy& policy() const { return policy_; }
  const TransferControl& control() const { return control_; }

 private:
  Result<std::string> fetch_text(Connection& connection, const HubRequest& request, const std::string& what,
                                 std::size_t most) const;

  HubSettings settings_;
  RetryPolicy policy_;
  TransferControl control_;
};

}  // namespace millrace::hub
