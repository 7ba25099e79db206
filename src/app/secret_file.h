// A secret of one line in a file that keeps it out of the process list: the key of the admin routes, etcd's user.
//
// The file must be a regular one of this user or of root, and readable by this user alone; a group may read one of
// root's, as Kubernetes mounts secrets. One newline at its end is no part of the secret. No message has the secret.
//
// Thread safety: free function.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxSecretBytes = 1024;

// `option`: that names the file, for messages. One byte more than kMaxSecretBytes may come: the caller checks.
// kNotFound, kPermissionDenied, kInvalidArgument.
Result<std::string> read_secret(const std::string& path, const char* option);

}  // namespace millrace
