// Directories of sentence-transformers as published ones have them, and those whose embedding is made otherwise.
#include "formats/pooling_config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "formats/testing/test_files.h"

namespace millrace {
namespace {

constexpr char kModules[] =
    R"([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])";
// As Qwen3-Embedding has it.
constexpr char kPooling[] =
    R"({"word_embedding_dimension": 1024, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": false,
        "pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false,
        "pooling_mode_weightedmean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true})";

class PoolingConfigTest : public ::testing::Test {
 protected:
  Status check(const std::string& modules, const std::string& pooling) {
    std::filesystem::create_directories(dir_.path() + "/1_Pooling");
    dir_.write("modules.json", modules);
    dir_.write("1_Pooling/config.json", pooling);
    return check_last_token_pooling(dir_.path());
  }
  test_files::TempDir dir_;
};

TEST_F(PoolingConfigTest, TheLastTokenIsServed) {
  EXPECT_TRUE(check_last_token_pooling(dir_.path()).ok()) << "a language model like any other";
  const Status status = check(kModules, kPooling);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(check(kModules, R"({"pooling_mode": "lasttoken"})").ok());
}

TEST_F(PoolingConfigTest, OtherWaysAreRefusedByName) {
  const auto message = [](const Status& status) { return std::string(status.message()); };
  const Status mean = check(kModules, R"({"pooling_mode_mean_tokens": true})");
  EXPECT_EQ(mean.code(), StatusCode::kUnsupported);
  EXPECT_NE(message(mean).find("pooling_mode_mean_tokens; wanted pooling_mode_lasttoken"), std::string::npos);
  EXPECT_FALSE(check(kModules, R"({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true})").ok());
  EXPECT_FALSE(check(kModules, R"({"pooling_mode": "mean"})").ok());
  EXPECT_NE(message(check(kModules, "{}")).find("no pooling mode"), std::string::npos);
  const Status dense = check(R"([{"type": "sentence_transformers.models.Dense"}])", kPooling);
  EXPECT_NE(message(dense).find("the module Dense"), std::string::npos);
  for (const char* broken : {"{}", "[1]", "[", R"([{"type": 5}])"}) EXPECT_FALSE(check(broken, kPooling).ok());
  for (const char* broken : {"[]", "{", R"({"pooling_mode": 5})"}) EXPECT_FALSE(check(kModules, broken).ok());
}

}  // namespace
}  // namespace millrace
