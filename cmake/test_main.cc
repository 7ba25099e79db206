// main() of the test programs that hold all test files of a folder. Each ctest entry selects one file's suites with
// --gtest_filter, so two faults would stay silent without this: a filter that selects nothing, and a suite that no
// entry selects. Both fail every run of the program. kSuites is what CMake read from the files (folder.cmake). The
// tests' paths are relative to the root of the sources, where ctest starts them; a run by hand goes there by itself.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace {

const char* const kSuites[] = {
#include "test_suites.inc"
};

// "Isas/OpsTest" and "OpsTest/0" are instances of OpsTest.
bool belongs_to(const std::string& registered, const std::string& suite) {
  if (registered == suite) return true;
  return registered.ends_with("/" + suite) || registered.starts_with(suite + "/") ||
         registered.find("/" + suite + "/") != std::string::npos;
}

int unknown_suites() {
  int unknown = 0;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const std::string registered = all.GetTestSuite(i)->name();
    bool found = registered == "GoogleTestVerification";  // gtest's own, about parameterized suites
    for (const char* suite : kSuites) found = found || belongs_to(registered, suite);
    if (found) continue;
    std::printf("error: no ctest entry runs the suite %s. Begin a line with its TEST macro, the suite's name behind.\n",
                registered.c_str());
    ++unknown;
  }
  return unknown;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (unknown_suites() > 0) return 1;
  std::filesystem::path root = std::filesystem::current_path();
  while (!std::filesystem::exists(root / "src/LAYERS") && root.has_relative_path()) root = root.parent_path();
  if (root.has_relative_path()) std::filesystem::current_path(root);
  const int result = RUN_ALL_TESTS();
  if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::printf("error: the filter selects no test\n");
    return 1;
  }
  return result;
}
