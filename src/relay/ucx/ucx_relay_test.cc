// The conformance suite against the UCX relay, over shared memory and over tcp; and what is UCX's own.
#include "relay/ucx/ucx_relay.h"

#include <gtest/gtest.h>

#include "relay/testing/conformance.h"

using namespace millrace;

namespace {

Result<std::unique_ptr<Relay>> make_with(RelayOptions options, const char* transports) {
  options.listen = transports;
  return make_ucx_relay(options);
}

std::string why_not(const char* transports) {
  const auto relay = make_with(RelayOptions{}, transports);
  return relay.ok() ? std::string() : relay.status().to_string();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<relay_testing::ConformanceSetup> setups;
  for (const auto& [name, transports] :
       {std::pair{"ucx_shm", "ucx:posix,cma,self"}, std::pair{"ucx_tcp", "ucx:tcp,self@lo"}}) {
    relay_testing::ConformanceSetup setup;
    setup.name = name;
    setup.make = [transports = transports](const RelayOptions& o) { return make_with(o, transports); };
    setup.unavailable = why_not(transports);
    setups.push_back(std::move(setup));
  }
  return relay_testing::conformance_main(argc, argv, setups);
}
