#include "relay/testing/conformance.h"

#include <gtest/gtest.h>

namespace millrace::relay_testing {

int conformance_main(int argc, char** argv, const std::vector<ConformanceSetup>& setups) {
  (void)setups;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace millrace::relay_testing
