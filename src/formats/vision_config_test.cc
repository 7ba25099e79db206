// Configs of vision-language models that are refused, and the names of their tensors. What transformers reads from such
// files is in model_config_test.cc.
#include "formats/vision_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "formats/model_config.h"
#include "formats/tensor_names.h"
#include "formats/testing/test_files.h"
#include "formats/weights.h"

namespace millrace {
namespace {

using nlohmann::json;
using test_files::TempDir;

json small_file() {
  return json::parse(R"({"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
      "image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293,
      "text_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "rope_parameters": {"rope_type": "default",
        "rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": true}},
      "vision_config": {"depth": 4, "hidden_size": 40, "intermediate_size": 56, "num_heads": 2, "patch_size": 8,
        "out_hidden_size": 64, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]}})");
}

TEST(VisionConfig, WrongFilesAreRefused) {
  ASSERT_TRUE(parse_model_config(small_file().dump(), "p").ok());
  const auto refused = [](std::string_view part, const std::function<void(json&)>& change) {
    json file = small_file();
    change(file);
    const auto config = parse_model_config(file.dump(), "p");
    ASSERT_FALSE(config.ok()) << part;
    EXPECT_NE(config.status().message().find(part), std::string::npos) << config.status().message();
  };
  refused("text_config is missing", [](json& f) { f.erase("text_config"); });
  refused("text_config is ", [](json& f) { f["text_config"] = 3; });
  refused("vision_config is missing", [](json& f) { f.erase("vision_config"); });
  refused("text_config: hidden_size", [](json& f) { f["text_config"]["hidden_size"] = 0; });
  refused("quantization_config is present", [](json& f) { f["quantization_config"] = {{"quant_method", "fp8"}}; });
  refused("text_config: is_causal is false", [](json& f) { f["text_config"]["is_causal"] = false; });
  refused("is_causal is false", [](json& f) { f["is_causal"] = false; });
  // The rotary axes.
  const auto rope = [](json& f) -> json& { return f["text_config"]["rope_parameters"]; };
  refused("mrope_interleaved is false", [&](json& f) { rope(f)["mrope_interleaved"] = false; });
  refused("mrope_section has 9 frequencies; wanted head_dim / 2, which is 8", [&](json& f) {
    rope(f)["mrope_section"] = {4, 3, 2};
  });
  refused("wanted a list of 3 integers", [&](json& f) { rope(f)["mrope_section"] = {4, 4}; });
  refused("mrope_section[1] is -1", [&](json& f) { rope(f)["mrope_section"] = {5, -1, 4}; });
  // The tower.
  const auto tower = [](json& f) -> json& { return f["vision_config"]; };
  refused("out_hidden_size is 32; wanted the language model's hidden_size, 64",
          [&](json& f) { tower(f)["out_hidden_size"] = 32; });
  refused("num_position_embeddings is 35; wanted a square", [&](json& f) { tower(f)["num_position_embeddings"] = 35; });
  refused("deepstack_visual_indexes holds 4; wanted ascending layers from 0 to 3", [&](json& f) {
    tower(f)["deepstack_visual_indexes"] = {0, 4};
  });
  refused("deepstack_visual_indexes holds 1", [&](json& f) { tower(f)["deepstack_visual_indexes"] = {2, 1}; });
  refused("deepstack_visual_indexes has 3 entries; wanted at most one for each of the 2 layers", [&](json& f) {
    tower(f)["deepstack_visual_indexes"] = {0, 1, 2};
  });
  refused("hidden_act is \"relu\"", [&](json& f) { tower(f)["hidden_act"] = "relu"; });
  refused("hidden_size is 42", [&](json& f) { tower(f)["hidden_size"] = 42; });
  refused("image_token_id is 300", [](json& f) { f["image_token_id"] = 300; });
}

TEST(VisionConfig, ExpertsAreAlwaysNormalized) {
  json file = small_file();
  file["architectures"] = {"Qwen3VLMoeForConditionalGeneration"};
  file["model_type"] = "qwen3_vl_moe";
  file["text_config"]["norm_topk_prob"] = false;
  const auto config = parse_model_config(file.dump(), "p");
  EXPECT_EQ(config.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(config.status().message().find("norm_topk_prob is false"), std::string::npos);
}

TEST(TensorNames, PrefixesOfVisionLanguageModels) {
  EXPECT_EQ(plain_tensor_name("model.language_model.layers.0.x"), "model.layers.0.x");
  EXPECT_EQ(plain_tensor_name("language_model.model.layers.0.x"), "model.layers.0.x");
  EXPECT_EQ(plain_tensor_name("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(plain_tensor_name("model.visual.blocks.0.x"), "visual.blocks.0.x");
  for (const char* name : {"visual.blocks.0.x", "model.layers.0.x", "lm_head.weight", "", "language_models.x"}) {
    EXPECT_EQ(plain_tensor_name(name), name);
  }
}

// Under either spelling; the index of shards has the names of the file.
TEST(TensorNames, StoresFindTensorsUnderEitherPrefix) {
  for (const char* prefix : {"model.language_model.", "language_model.model."}) {
    TempDir dir;
    const std::string name = std::string(prefix) + "norm.weight";
    dir.write("a.safetensors", test_files::f32_file({{name, {1, 2}}, {"model.visual.x", {3}}}));
    dir.write("model.safetensors.index.json",
              json{{"weight_map", {{name, "a.safetensors"}, {"model.visual.x", "a.safetensors"}}}}.dump());
    auto store = WeightStore::open(dir.path());
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    EXPECT_TRUE(store->get("model.norm.weight", {2}).ok());
    EXPECT_TRUE(store->get("visual.x", {1}).ok());
  }
  TempDir dir;  // both spellings of one tensor
  dir.write("model.safetensors", test_files::f32_file({{"model.visual.x", {1}}, {"visual.x", {2}}}));
  const auto store = WeightStore::open(dir.path());
  ASSERT_EQ(store.status().code(), StatusCode::kInvalidArgument);
  test_files::expect_message(store.status().message(), {"model.safetensors", "\"visual.x\" under two names"});
}

}  // namespace
}  // namespace millrace
