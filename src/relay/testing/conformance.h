// The conformance suite: what every backend of the relay must do, as gtest cases that run against a factory.
//
//      int main(int argc, char** argv) {              // of shm/shm_relay_test.cc
//        using namespace millrace;
//        return relay_testing::conformance_main(
//            argc, argv, {{.name = "shm", .make = [](const RelayOptions& o) { return make_shm_relay(o); }}});
//      }
//
// Each case makes its own relays, a writer and a reader, in this process, and where it kills one of them, in a child:
// this same program, spawned with --relay-peer=NAME (testing/peer.h). Which cases apply follows from capabilities();
// one that does not is skipped with the reason. The file may hold further TESTs of the backend's own: they run as well.
//
// The cases stand as RelayConformance_NAME.* ; --gtest_filter works. No case asserts how long something takes; each
// wait has the patience of testing/await.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "relay/relay.h"

namespace millrace::relay_testing {

struct ConformanceSetup {
  std::string name;  // "shm": letters, digits and '_'
  std::function<Result<std::unique_ptr<Relay>>(const RelayOptions& options)> make;
  RelayOptions options;     // the cases change pool_bytes, credits, lease_ms and silent_ms of it
  std::string unavailable;  // why it cannot run here: all cases are skipped with this reason
  // What is left over in the system that is this backend's: "" for nothing. Asked when all relays of a case are gone,
  // also after a kill; the suite has patience. Null: not asked.
  std::function<std::string()> left_over;
  bool only_between_processes = false;  // no pair of relays in one process
};

// Registers the cases of all setups, runs all tests of the program and returns its exit code; or, with
// --relay-peer=NAME as argument, is the peer of a test.
int conformance_main(int argc, char** argv, const std::vector<ConformanceSetup>& setups);

}  // namespace millrace::relay_testing
