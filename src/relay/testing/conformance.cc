#include "relay/testing/conformance.h"

#include <signal.h>

#include "relay/testing/fixture.h"
#include "relay/testing/peer.h"

namespace millrace::relay_testing {
namespace {

class ConformanceTest : public testing::Test {
 public:
  ConformanceTest(const ConformanceSetup& setup, Case which) : setup_(setup), which_(which) {}
  void TestBody() override {
    if (!setup_.unavailable.empty()) GTEST_SKIP() << setup_.name << " is not available: " << setup_.unavailable;
    which_.run(setup_);
    expect_nothing_left(setup_);
  }

 private:
  const ConformanceSetup setup_;
  const Case which_;
};

}  // namespace

int conformance_main(int argc, char** argv, const std::vector<ConformanceSetup>& setups) {
  ::signal(SIGPIPE, SIG_IGN);
  if (const std::optional<int> code = run_peer(argc, argv, setups)) return *code;
  testing::InitGoogleTest(&argc, argv);
  for (const ConformanceSetup& setup : setups) {
    std::vector<std::vector<Case>> all = {process_cases()};
    if (!setup.only_between_processes) {
      all.insert(all.end(), {basic_cases(), limit_cases(), ending_cases(), descriptor_cases()});
    }
    for (const auto& cases : all) {
      for (const Case& which : cases) {
        testing::RegisterTest(("RelayConformance_" + setup.name).c_str(), which.name, nullptr, nullptr, __FILE__,
                              __LINE__,
                              [setup, which]() -> testing::Test* { return new ConformanceTest(setup, which); });
      }
    }
  }
  return RUN_ALL_TESTS();
}

}  // namespace millrace::relay_testing
