// Every field that changes an answer is compared, by name and with both values.
#include "formats/same_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <tuple>

namespace millrace {
namespace {

ModelConfig config() {
  ModelConfig out{.hidden_size = 64, .intermediate_size = 128, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16};
  out.layer_window = {0, 0};
  out.eos_token_ids = {7, 9};
  out.mean_pooling = false;
  out.vision = VisionConfig{.depth = 2};
  out.audio = AudioConfig{.layers = 2};
  return out;
}

// All of a struct. One more field in it, and this does not compile: the test below then changes that one too.
auto fields_of(RopeConfig& rope) {
  auto& [type, theta, factor, low_freq, high_freq, original_positions, attention_factor, mrope_section] = rope;
  return std::tie(type, theta, factor, low_freq, high_freq, original_positions, attention_factor, mrope_section);
}
auto fields_of(ModelConfig& config) {
  auto& [architecture, model_type, hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary, positions, eps,
         rope, tied, mean_pooling, score_head, qkv_bias, o_proj_bias, mlp_bias, qk_norm, windows, experts, of_a_token,
         moe_intermediate, shared_expert, norm_topk, sparse_step, mlp_only, dtype, bos, pad, eos, vision, audio] =
      config;
  return std::tie(architecture, model_type, hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary,
                  positions, eps, rope, tied, mean_pooling, score_head, qkv_bias, o_proj_bias, mlp_bias, qk_norm,
                  windows, experts, of_a_token, moe_intermediate, shared_expert, norm_topk, sparse_step, mlp_only,
                  dtype, bos, pad, eos, vision, audio);
}

void change(int& value) { ++value; }
void change(double& value) { value += 1; }
void change(bool& value) { value = !value; }
void change(std::string& value) { value += "x"; }
void change(std::vector<int>& value) { value.push_back(1); }
void change(std::array<int, 3>& value) { ++value[1]; }
void change(Architecture& value) { value = Architecture::kQwen3; }
void change(RopeType& value) { value = RopeType::kLlama3; }
void change(DType& value) { value = DType::kF16; }
void change(VisionConfig& value) { ++value.patch_size; }  // its operator== has all fields
void change(AudioConfig& value) { ++value.mel_bins; }
void change(RopeConfig& value) { change(value.theta); }  // the others one by one
template <typename T>
void change(std::optional<T>& value) {
  if (!value) value.emplace();
  change(*value);
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
      {"the mean of all rows (1_Pooling/config.json) is true; wanted false",
       [](ModelConfig& c) { c.mean_pooling = true; }},
      {"the presence of vision_config is false; wanted true", [](ModelConfig& c) { c.vision.reset(); }},
      {"the presence of audio_config is false; wanted true", [](ModelConfig& c) { c.audio.reset(); }},
      {"vision_config.depth is 3; wanted 2", [](ModelConfig& c) { c.vision->depth = 3; }},
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

TEST(SameConfigTest, NoFieldIsForgotten) {
  ModelConfig other = config();
  const void* const of_no_answer[] = {&other.model_type, &other.dtype, &other.bos_token_id, &other.pad_token_id};
  std::size_t number = 0;
  const auto check = [&](auto& field) {
    const auto kept = field;
    change(field);
    const bool may_differ = std::ranges::find(of_no_answer, static_cast<const void*>(&field)) != std::end(of_no_answer);
    EXPECT_EQ(check_same_config(other, config()).ok(), may_differ) << "field " << number;
    field = kept;
    ++number;
  };
  std::apply([&](auto&... field) { (check(field), ...); }, fields_of(other));
  std::apply([&](auto&... field) { (check(field), ...); }, fields_of(other.rope));
  EXPECT_TRUE(check_same_config(other, config()).ok());
}

TEST(SameConfigTest, WhatChangesNoAnswerMayDiffer) {
  ModelConfig other = config();
  other.dtype = DType::kF16;
  other.bos_token_id = 1;
  other.eos_token_ids.clear();
  other.mean_pooling.reset();  // the folder of a trainer has the language model alone
  other.rms_norm_eps = static_cast<double>(static_cast<float>(config().rms_norm_eps));
  EXPECT_TRUE(check_same_config(other, config()).ok());
}

}  // namespace
}  // namespace millrace
