// A model that is written as one file shows how far it is, and one that is stopped leaves nothing behind.
#include "models/quantize_model.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace millrace {
namespace {

namespace fs = std::filesystem;

class QuantizeModelTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("quantize-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  Status quantize(const QuantizeProgress& progress) {
    return quantize_model({.input = std::string(MILLRACE_SOURCE_DIR) + "/models/demo",
                           .output = (folder_ / "out.gguf").string(),
                           .type = "q8_0"},
                          progress);
  }
  fs::path folder_;
};

TEST_F(QuantizeModelTest, ProgressGoesOnToTheEnd) {
  uint64_t last = 0, all = 0;
  int calls = 0;
  ASSERT_TRUE(quantize([&](uint64_t done, uint64_t total) {
                EXPECT_GE(done, last);
                last = done, all = total;
                ++calls;
                return true;
              }).ok());
  EXPECT_GE(calls, 2);
  EXPECT_EQ(last, all);
  EXPECT_TRUE(fs::exists(folder_ / "out.gguf"));
}

TEST_F(QuantizeModelTest, OneThatIsStoppedLeavesNothing) {
  EXPECT_EQ(quantize([](uint64_t, uint64_t) { return false; }).code(), StatusCode::kCancelled);
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace millrace
