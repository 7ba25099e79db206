// The UCX relay: libucp 1.13 or later, opened at run time, so that one binary serves machines with and without it.
//
// Which transports: options.listen "ucx:TRANSPORTS[@DEVICES]" ("ucx:tcp,self@eth0"); else UCX_TLS and UCX_NET_DEVICES
// where they are set; else kUcxTransports on the loopback device. A listen without "ucx:" is another relay's and does
// not count. UCX itself knows no passwords: every peer that reaches a tcp port of it is trusted with this process's
// memory, so let it listen on devices of a closed network only (docs/relay-ucx.md).
//
// Thread safety: as in relay.h. The first call in a process sets environment variables (UCX_HANDLE_ERRORS and others
// of docs/relay-ucx.md, where they are not set already): make it before other threads read the environment.
#pragma once

#include <memory>

#include "base/status.h"
#include "relay/relay.h"

namespace millrace {

namespace ucx {
struct UcxApi;
}

inline constexpr const char* kUcxLibrary = "libucp.so.0";
inline constexpr const char* kUcxTransports = "posix,cma,tcp,self";
inline constexpr const char* kUcxDevices = "lo";

// kUnavailable where the library is not there, or too old, or has no such transport: the message has the reason.
Result<std::unique_ptr<Relay>> make_ucx_relay(const RelayOptions& options);
// The same from a library of this name.
Result<std::unique_ptr<Relay>> make_ucx_relay_from(const char* library, const RelayOptions& options);
// The same over these functions, which outlive it: for tests, some of whose have accidents.
Result<std::unique_ptr<Relay>> make_ucx_relay_over(const ucx::UcxApi& api, const RelayOptions& options);

}  // namespace millrace
