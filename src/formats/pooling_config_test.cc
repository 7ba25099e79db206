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
  Result<PoolingConfig> check(const std::string& modules, const std::string& pooling) {
    std::filesystem::create_directories(dir_.path() + "/1_Pooling");
    dir_.write("modules.json", modules);
    dir_.write("1_Pooling/config.json", pooling);
    return read_pooling_config(dir_.path());
  }
  test_files::TempDir dir_;
};

TEST_F(PoolingConfigTest, TheLastTokenIsServed) {
  EXPECT_FALSE(read_pooling_config(dir_.path())->mean) << "a language model like any other";
  EXPECT_TRUE(read_pooling_config(dir_.path())->normalizes);
  for (const char* pooling : {kPooling, R"({"pooling_mode": "lasttoken"})"}) {
    const auto config = check(kModules, pooling);
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_FALSE(config->mean);
    EXPECT_TRUE(config->normalizes);
  }
}

TEST_F(PoolingConfigTest, SoIsTheMean) {
  for (const char* pooling : {R"({"pooling_mode_mean_tokens": true})", R"({"pooling_mode": "mean"})"}) {
    const auto config =
        check(R"([{"type": "sentence_transformers.models.Transformer"}, {"type": "x.Pooling"}])", pooling);
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_TRUE(config->mean);
    EXPECT_FALSE(config->normalizes) << "no module of that name";
  }
}

TEST_F(PoolingConfigTest, OtherWaysAreRefusedByName) {
  const auto message = [](const Result<PoolingConfig>& config) { return std::string(config.status().message()); };
  const auto first = check(kModules, R"({"pooling_mode_cls_token": true})");
  EXPECT_EQ(first.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(message(first).find("pooling_mode_cls_token; wanted pooling_mode_lasttoken or pooling_mode_mean_tokens"),
            std::string::npos);
  EXPECT_FALSE(check(kModules, R"({"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true})").ok());
  EXPECT_FALSE(check(kModules, R"({"pooling_mode": "cls"})").ok());
  EXPECT_NE(message(check(kModules, "{}")).find("no pooling mode"), std::string::npos);
  const auto dense = check(R"([{"type": "sentence_transformers.models.Dense"}])", kPooling);
  EXPECT_NE(message(dense).find("the module Dense"), std::string::npos);
  for (const char* broken : {"{}", "[1]", "[", R"([{"type": 5}])"}) EXPECT_FALSE(check(broken, kPooling).ok());
  for (const char* broken : {"[]", "{", R"({"pooling_mode": 5})"}) EXPECT_FALSE(check(kModules, broken).ok());
}

}  // namespace
}  // namespace millrace
