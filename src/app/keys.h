// The keys of the HTTP server: the API key of the command line or of MILLRACE_API_KEY, and the key of the admin routes,
// from the command line or from a file that keeps it out of the process list. They go to the HTTP server alone: not to
// child processes, logs or /server_info.
//
// Thread safety: free function.
#pragma once

#include <cstddef>

#include "app/options.h"
#include "app/secret_file.h"
#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxKeyBytes = kMaxSecretBytes;

// Puts what is in options.admin_api_key_file, if one is given, into options.admin_api_key, and checks both keys: 1 to
// kMaxKeyBytes printable ASCII characters without spaces, and not the same. An empty key that is given (options.given)
// is an error: it would start a server that is open to everyone. No message has a key in it (app/secret_file.h).
// Errors: kNotFound, kPermissionDenied, kInvalidArgument.
Status load_keys(ServeOptions& options);

}  // namespace millrace
