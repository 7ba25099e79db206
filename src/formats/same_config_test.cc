// Every field that changes an answer is compared, by name and with both values.
#include "formats/same_config.h"

#include <gtest/gtest.h>

#include <functional>

namespace millrace {
namespace {

ModelConfig config() {
  ModelConfig out{.hidden_size = 64, .intermediate_size = 128, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16};
  out.layer_window = {0, 0};
  out.eos_token_ids = {7, 9};
  return out;
}

TEST(SameConfigTest, TheFieldThatDiffersIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> changes = {
      {"rope_theta is 500000; wanted 10000", [](ModelConfig& c) { c.rope.theta = 500000; }},
      {"rms_norm_eps is 1e-05; wanted 1e-06", [](ModelConfig& c) { c.rms_norm_eps = 1e-5; }},
      {"rope_scaling.rope_type is linear; wanted default", [](ModelConfig& c) { c.rope.type = RopeType::kLinear; }},
      {"rope_scaling.factor is 8; wanted 1", [](ModelConfig& c) { c.rope.factor = 8; }},
      {"rope_scaling.low_freq_factor", [](ModelConfig& c) { c.rope.low_freq_factor = 2; }},
      {"rope_scaling.high_freq_factor", [](ModelConfig& c) { c.rope.high_freq_factor = 2; }},
      {"rope_scaling.original_max", [](ModelConfig& c) { c.rope.original_max_position_embeddings = 4096; }},
      {"hidden_size is 32; wanted 64", [](ModelConfig& c) { c.hidden_size = 32; }},
      {"num_hidden_layers", [](ModelConfig& c) { c.layers = 1; }},
      {"num_key_value_heads", [](ModelConfig& c) { c.kv_heads = 1; }},
      {"max_position_embeddings", [](ModelConfig& c) { c.max_position_embeddings = 99; }},
      {"tie_word_embeddings is true; wanted false", [](ModelConfig& c) { c.tie_word_embeddings = true; }},
      {"the presence of a head of labels is true; wanted false", [](ModelConfig& c) { c.score_head = true; }},
      {"attention_bias", [](ModelConfig& c) { c.o_proj_bias = true; }},
      {"sliding windows",
       [](ModelConfig& c) {
         c.layer_window = {0, 512};
       }},
      {"num_experts_per_tok", [](ModelConfig& c) { c.experts_per_token = 4; }},
      {"norm_topk_prob", [](ModelConfig& c) { c.norm_topk_prob = true; }},
      {"eos_token_id is [7]; wanted [7, 9]", [](ModelConfig& c) { c.eos_token_ids = {7}; }},
  };
  for (const auto& [words, change] : changes) {
    ModelConfig other = config();
    change(other);
    const Status status = check_same_config(other, config());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << words;
    EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  }
}

TEST(SameConfigTest, WhatChangesNoAnswerMayDiffer) {
  ModelConfig other = config();
  other.dtype = DType::kF16;
  other.bos_token_id = 1;
  other.eos_token_ids.clear();
  other.rms_norm_eps = static_cast<double>(static_cast<float>(config().rms_norm_eps));
  EXPECT_TRUE(check_same_config(other, config()).ok());
}

}  // namespace
}  // namespace millrace
