// Which transports and network devices UCX is configured to use, from the relay's options and the environment.
// Thread safety: values; free functions without state.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::ucx {

inline constexpr std::size_t kMaxTransportsBytes = 256;

struct Transports {
  std::string tls;       // "posix,cma,tcp,self", as UCX_TLS
  std::string devices;   // "lo", as UCX_NET_DEVICES; empty: all
  std::string ip;        // where peers connect to: the first address of the devices
  bool memory = false;   // has shared memory: puts are offered in a pool that peers map
  bool network = false;  // may reach other hosts
};

// `listen`: "ucx:TRANSPORTS[@DEVICES]", or anything else for those of the environment (null: not set) or else of the
// default. kInvalidArgument: empty, too long, or with other characters than UCX's lists have.
// Connections are made over tcp, whatever they use then: it is added to the list where it is missing.
Result<Transports> choose_transports(const std::string& listen, const char* env_tls, const char* env_devices);

}  // namespace millrace::ucx
