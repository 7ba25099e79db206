// The key of the admin routes: from the command line, or from a file that keeps it out of the process list. It goes to
// the HTTP server alone: not to child processes, logs or /server_info.
//
// Thread safety: free function.
#pragma once

#include <cstddef>

#include "app/options.h"
#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxAdminKeyBytes = 1024;

// Puts what is in options.admin_api_key_file, if one is given, into options.admin_api_key, and checks the key: 1 to
// kMaxAdminKeyBytes printable ASCII characters without spaces, other than the API key. The file must be readable by
// this user alone; one newline at its end is no part of the key. No message tells what is in it. Errors: kNotFound,
// kPermissionDenied, kInvalidArgument.
Status load_admin_key(ServeOptions& options);

}  // namespace millrace
