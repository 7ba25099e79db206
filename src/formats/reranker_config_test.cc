// Directories of rerankers as published ones have them, and those that are none.
#include "formats/reranker_config.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "formats/testing/test_files.h"

namespace millrace {
namespace {

class RerankerConfigTest : public ::testing::Test {
 protected:
  Result<std::optional<RerankerConfig>> read(const std::string& config, const std::string& modules = "",
                                             const std::string& head = "") {
    dir_.write("config.json", config);
    if (!modules.empty()) dir_.write("modules.json", modules);
    std::filesystem::create_directories(dir_.path() + "/1_LogitScore");
    if (!head.empty()) dir_.write("1_LogitScore/config.json", head);
    return read_reranker_config(dir_.path());
  }
  test_files::TempDir dir_;
};

constexpr char kCausal[] = R"({"architectures": ["Qwen3ForCausalLM"]})";
constexpr char kLogitScore[] =
    R"([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.LogitScore"}])";

TEST_F(RerankerConfigTest, TwoTokens) {
  const auto named = read(R"({"architectures": ["Qwen3ForCausalLM"], "classifier_from_token": ["no", "yes"]})");
  ASSERT_TRUE(named.ok() && *named) << named.status().to_string();
  EXPECT_EQ(std::get<std::string>(std::get<RerankTokens>(**named).no), "no");
  EXPECT_EQ(std::get<std::string>(std::get<RerankTokens>(**named).yes), "yes");
  const auto numbered = read(kCausal, kLogitScore, R"({"true_token_id": 9693, "false_token_id": 2152})");
  ASSERT_TRUE(numbered.ok() && *numbered) << numbered.status().to_string();
  EXPECT_EQ(std::get<int32_t>(std::get<RerankTokens>(**numbered).no), 2152);
  EXPECT_EQ(std::get<int32_t>(std::get<RerankTokens>(**numbered).yes), 9693);
}

TEST_F(RerankerConfigTest, AHeadOfOneLabel) {
  for (const char* labels : {R"("id2label": {"0": "LABEL_0"})", R"("num_labels": 1)"}) {
    const auto head = read(R"({"architectures": ["Qwen3ForSequenceClassification"], )" + std::string(labels) + "}");
    ASSERT_TRUE(head.ok() && *head) << head.status().to_string();
    EXPECT_TRUE(std::holds_alternative<RerankHead>(**head));
  }
}

TEST_F(RerankerConfigTest, OtherModelsAreNone) {
  EXPECT_FALSE(read_reranker_config(dir_.path() + "/nothing")->has_value());
  EXPECT_FALSE(read(kCausal)->has_value());
  EXPECT_FALSE(read(kCausal, R"([{"type": "sentence_transformers.models.Pooling"}])")->has_value());
}

TEST_F(RerankerConfigTest, WhatCannotBeReadIsAnError) {
  const auto fails = [&](const std::string& part, const auto& config) {
    ASSERT_FALSE(config.ok()) << part;
    EXPECT_NE(std::string(config.status().message()).find(part), std::string::npos) << config.status().to_string();
  };
  fails("2 labels; wanted 1", read(R"({"architectures": ["Qwen3ForSequenceClassification"]})"));
  fails("no list of two texts", read(R"({"classifier_from_token": ["no"]})"));
  fails("true_token_id", read(kCausal, kLogitScore, R"({"true_token_id": 5})"));
  fails("a folder beside it", read(kCausal, R"([{"type": "x.LogitScore", "path": "../a"}])"));
  fails("config.json", read("{"));
}

}  // namespace
}  // namespace millrace
