// For tests: a relay behind which all parts lie in device memory. What is put is copied into the device first, what was
// got without destinations is copied out before `done`, so that the cases of the conformance suite, which look at the
// bytes, pass between two devices.
//
// Thread safety: as relay.h.
#pragma once

#include <memory>

#include "nccl/nccl_api.h"
#include "relay/relay.h"

namespace millrace::relay_testing {

std::unique_ptr<Relay> behind_device_memory(std::unique_ptr<Relay> relay, const nccl::Api& api);

}  // namespace millrace::relay_testing
