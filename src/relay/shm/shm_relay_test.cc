// The shared-memory relay: the conformance suite, and what is its own.
#include "relay/shm/shm_relay.h"

#include <gtest/gtest.h>

#include "relay/testing/conformance.h"
#include "relay/testing/fixture.h"
#include "relay/testing/peer.h"

namespace millrace {
namespace {

relay_testing::ConformanceSetup setup() {
  return {.name = "shm", .make = [](const RelayOptions& options) { return make_shm_relay(options); }};
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) { return millrace::relay_testing::conformance_main(argc, argv, {millrace::setup()}); }
