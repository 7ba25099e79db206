// Configs of Qwen3-Omni that are refused, and the names of its tensors. What transformers reads from such files is in
// model_config_test.cc.
#include "formats/audio_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "formats/model_config.h"
#include "formats/tensor_names.h"
#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using nlohmann::json;

json omni_file() {
  return json::parse(R"({"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
      "im_end_token_id": 298, "thinker_config": {
        "image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293,
        "audio_token_id": 294, "audio_start_token_id": 295, "audio_end_token_id": 296,
        "text_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "rope_parameters": {"rope_type": "default",
          "rope_theta": 1e6, "mrope_section": [4, 2, 2]}},
        "vision_config": {"depth": 4, "hidden_size": 40, "intermediate_size": 56, "num_heads": 2, "patch_size": 8,
          "out_hidden_size": 64, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]},
        "audio_config": {"num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24,
          "d_model": 40, "n_window": 50, "n_window_infer": 800, "output_dim": 64, "downsample_hidden_size": 8}}})");
}

TEST(AudioConfig, WrongFilesAreRefused) {
  const auto good = parse_model_config(omni_file().dump(), "p");
  ASSERT_TRUE(good.ok()) << good.status().to_string();
  EXPECT_EQ(good->architecture, Architecture::kQwen3OmniMoe);
  EXPECT_EQ(good->eos_token_ids, std::vector<int32_t>{298});
  EXPECT_EQ(good->audio->window_chunks(), 8);
  const auto refused = [](std::string_view part, const std::function<void(json&)>& change) {
    json file = omni_file();
    change(file);
    const auto config = parse_model_config(file.dump(), "p");
    ASSERT_FALSE(config.ok()) << part;
    EXPECT_NE(config.status().message().find(part), std::string::npos) << config.status().message();
  };
  const auto thinker = [](json& f) -> json& { return f["thinker_config"]; };
  const auto tower = [](json& f) -> json& { return f["thinker_config"]["audio_config"]; };
  refused("p: thinker_config is missing; wanted an object", [](json& f) { f.erase("thinker_config"); });
  refused("thinker_config: audio_config is missing", [&](json& f) { thinker(f).erase("audio_config"); });
  refused("audio_token_id is 300; wanted 0 to 299", [&](json& f) { thinker(f)["audio_token_id"] = 300; });
  refused("audio_end_token_id is missing", [&](json& f) { thinker(f).erase("audio_end_token_id"); });
  refused("quantization_config is present", [](json& f) { f["quantization_config"] = {{"quant_method", "awq"}}; });
  refused("sliding_window is 64; wanted null", [&](json& f) { thinker(f)["text_config"]["sliding_window"] = 64; });
  refused("im_end_token_id is -1", [](json& f) { f["im_end_token_id"] = -1; });
  // The encoder.
  refused("n_window is 100; wanted 50: rows are counted for chunks of 100 frames",
          [&](json& f) { tower(f).erase("n_window"); });
  refused("n_window_infer is 99; wanted 100 to 1048576", [&](json& f) { tower(f)["n_window_infer"] = 99; });
  refused("d_model is 42; wanted a multiple of 2 times encoder_attention_heads, which is 2",
          [&](json& f) { tower(f)["d_model"] = 42; });
  refused("output_dim is 63; wanted the language model's hidden_size, 64",
          [&](json& f) { tower(f)["output_dim"] = 63; });
  refused("activation_function is \"relu\"; wanted gelu", [&](json& f) { tower(f)["activation_function"] = "relu"; });
  refused("num_mel_bins is 0; wanted 1 to 512", [&](json& f) { tower(f)["num_mel_bins"] = 0; });
  refused("max_source_positions is 12", [&](json& f) { tower(f)["max_source_positions"] = 12; });
}

TEST(AudioConfig, NamesOfTensors) {
  EXPECT_EQ(plain_tensor_name("thinker.model.layers.0.x"), "model.layers.0.x");
  EXPECT_EQ(plain_tensor_name("thinker.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(plain_tensor_name("thinker.visual.merger_list.0.x"), "visual.merger_list.0.x");
  EXPECT_EQ(plain_tensor_name("thinker.audio_tower.conv2d1.weight"), "audio_tower.conv2d1.weight");
  for (const char* name : {"talker.model.layers.0.x", "code2wav.x", "audio_tower.ln_post.bias", "thinkers.x"}) {
    EXPECT_EQ(plain_tensor_name(name), name);
  }
  for (const char* name : {"talker.model.x", "code2wav.x", "audio_tower.x"}) EXPECT_TRUE(is_of_omni_part(name));
  for (const char* name : {"model.talker.x", "visual.x", "lm_head.weight"}) EXPECT_FALSE(is_of_omni_part(name));
}

}  // namespace
}  // namespace millrace
