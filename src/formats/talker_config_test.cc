// Configs of Qwen3-Omni's talker: what is read, and what is refused.
#include "formats/talker_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

using nlohmann::json;

json talker_file() {
  return json::parse(
      R"({"talker_config": {"num_code_groups": 16, "thinker_hidden_size": 2048, "accept_hidden_layer": 24,
      "codec_eos_token_id": 2150, "codec_nothink_id": 2155, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
      "codec_pad_id": 2148, "codec_bos_id": 2149, "speaker_id": {"Chelsie": 2301, "ethan": 2302},
      "text_config": {"vocab_size": 3072, "hidden_size": 1024, "head_dim": 128, "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 768, "mlp_only_layers": [3], "decoder_sparse_step": 2},
      "code_predictor_config": {"num_code_groups": 16, "rope_theta": 1000000, "rope_scaling": null}}})");
}

TEST(TalkerConfig, ReadsTheTalkerAndTheCodePredictor) {
  const auto config = parse_talker_config(talker_file().dump(), "p");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->code_groups, 16);
  EXPECT_EQ(config->thinker_hidden_size, 2048);
  EXPECT_EQ(config->accept_hidden_layer, 24);
  EXPECT_EQ(config->codec_eos, 2150);
  EXPECT_EQ(config->codec_nothink, 2155);
  EXPECT_EQ(config->codec_think_bos, 2156);
  EXPECT_EQ(config->codec_think_eos, 2157);
  EXPECT_EQ(config->codec_pad, 2148);
  EXPECT_EQ(config->codec_bos, 2149);
  EXPECT_EQ(config->turns.im_start, 151644);
  EXPECT_EQ(config->turns.system, 8948);
  EXPECT_EQ(config->turns.user, 872);
  EXPECT_EQ(config->turns.assistant, 77091);
  EXPECT_EQ(config->turns.tts_pad, 151671);
  EXPECT_EQ(config->turns.tts_bos, 151672);
  EXPECT_EQ(config->turns.tts_eos, 151673);
  EXPECT_EQ(config->speakers.at("chelsie"), 2301);
  EXPECT_EQ(config->speakers.at("ethan"), 2302);
  const ModelConfig& talker = config->text;  // those of Qwen3OmniMoeTalkerTextConfig
  EXPECT_EQ(talker.layers, 20);
  EXPECT_EQ(talker.heads, 16);
  EXPECT_EQ(talker.num_experts, 128);
  EXPECT_EQ(talker.experts_per_token, 8);
  EXPECT_EQ(talker.moe_intermediate_size, 384);
  EXPECT_EQ(talker.shared_expert_size, 768);
  EXPECT_FALSE(talker.norm_topk_prob);
  for (int i = 0; i < talker.layers; ++i) EXPECT_TRUE(talker.has_experts(i)) << "whatever the file has";
  EXPECT_EQ(talker.rope.theta, 10000);
  EXPECT_EQ(talker.rope.mrope_section, (std::array<int, 3>{24, 20, 20}));
  const ModelConfig& predictor = config->predictor;  // the defaults of Qwen3OmniMoeTalkerCodePredictorConfig
  EXPECT_EQ(predictor.vocab_size, 2048);
  EXPECT_EQ(predictor.hidden_size, 1024);
  EXPECT_EQ(predictor.intermediate_size, 3072);
  EXPECT_EQ(predictor.layers, 5);
  EXPECT_EQ(predictor.heads, 16);
  EXPECT_EQ(predictor.kv_heads, 8);
  EXPECT_EQ(predictor.head_dim, 128);
  EXPECT_EQ(predictor.rope.theta, 1e6);
  EXPECT_EQ(predictor.rms_norm_eps, 1e-6);
  EXPECT_FALSE(predictor.qkv_bias);
  EXPECT_TRUE(predictor.qk_norm);
}

TEST(TalkerConfig, WrongFilesAreRefused) {
  const auto refused = [](std::string_view wanted, const std::function<void(json&)>& change) {
    json file = talker_file();
    change(file["talker_config"]);
    const auto config = parse_talker_config(file.dump(), "p");
    ASSERT_FALSE(config.ok()) << wanted;
    EXPECT_EQ(config.status().message(), wanted);
  };
  EXPECT_EQ(parse_talker_config("{}", "p").status().message(), "p: talker_config is missing; wanted an object");
  refused("p: talker_config: code_predictor_config: num_code_groups is 8; wanted the talker's, 16",
          [](json& t) { t["code_predictor_config"]["num_code_groups"] = 8; });
  refused("p: talker_config: num_code_groups is 1; wanted 2 to 64", [](json& t) { t["num_code_groups"] = 1; });
  refused("p: talker_config: code_predictor_config: hidden_size is 512; wanted that of text_config, 1024",
          [](json& t) { t["code_predictor_config"]["hidden_size"] = 512; });
  refused(
      "p: talker_config: text_config: shared_expert_intermediate_size is missing; wanted an integer in [1, 1048576]",
      [](json& t) { t["text_config"].erase("shared_expert_intermediate_size"); });
  refused("p: talker_config: codec_eos_token_id is 3072; wanted 0 to 3071",
          [](json& t) { t["codec_eos_token_id"] = 3072; });
  refused("p: talker_config: speaker_id: Chelsie is -1; wanted 0 to 3071",
          [](json& t) { t["speaker_id"]["Chelsie"] = -1; });
  refused("p: talker_config: code_predictor_config is of type integer; wanted an object",
          [](json& t) { t["code_predictor_config"] = 3; });
  refused("p: talker_config: code_predictor_config: hidden_act is \"gelu\"; wanted silu",
          [](json& t) { t["code_predictor_config"]["hidden_act"] = "gelu"; });
}

}  // namespace
}  // namespace millrace
