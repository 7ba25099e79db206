// Configs of Qwen3-Omni's vocoder: the defaults of transformers 5.12's class, and what is refused.
#include "formats/code2wav_config.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Code2WavConfig, Defaults) {
  const auto config = parse_code2wav_config(R"({"code2wav_config": {}})", "p");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  const Code2WavConfig wanted{.codebook_size = 2048,
                              .quantizers = 16,
                              .hidden_size = 1024,
                              .intermediate_size = 3072,
                              .layers = 8,
                              .heads = 16,
                              .kv_heads = 16,
                              .head_dim = 64,
                              .sliding_window = 72,
                              .rms_norm_eps = 1e-5,
                              .rope_theta = 10000,
                              .upsampling_ratios = {2, 2},
                              .upsample_rates = {8, 5, 4, 3},
                              .decoder_dim = 1536};
  EXPECT_EQ(*config, wanted);
  EXPECT_EQ(config->samples(25), 25 * 1920 - 555);
}

TEST(Code2WavConfig, WrongFilesAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "p: code2wav_config is missing; wanted an object"},
      {R"({"code2wav_config": {"hidden_act": "relu"}})", "p: code2wav_config: hidden_act is \"relu\"; wanted silu"},
      {R"({"code2wav_config": {"num_key_value_heads": 3}})",
       "p: code2wav_config: num_key_value_heads is 3; wanted a divisor of num_attention_heads, which is 16"},
      {R"({"code2wav_config": {"head_dim": 7}})",
       "p: code2wav_config: head_dim is 7; wanted an even number, since RoPE turns pairs"},
      {R"({"code2wav_config": {"sliding_window": 0}})",
       "p: code2wav_config: sliding_window is 0; wanted 1 to 67108864"},
      {R"({"code2wav_config": {"upsample_rates": [8, 65]}})",
       "p: code2wav_config: upsample_rates holds 65; wanted 1 to 64"},
      {R"({"code2wav_config": {"upsample_rates": 8}})",
       "p: code2wav_config: upsample_rates is integer; wanted a list of at most 8 integers"},
      {R"({"code2wav_config": {"decoder_dim": 1500}})",
       "p: code2wav_config: decoder_dim is 1500; wanted a multiple of 16, since each of 4 blocks halves it"},
      {R"({"code2wav_config": {"num_quantizers": 65}})", "p: code2wav_config: num_quantizers is 65; wanted 1 to 64"},
      {R"({"code2wav_config": {"rope_parameters": {"rope_type": "linear"}}})",
       "p: code2wav_config: rope_parameters: rope_type is \"linear\"; wanted default"}};
  for (const auto& [text, wanted] : cases) {
    const auto config = parse_code2wav_config(text, "p");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.status().message(), wanted);
  }
}

}  // namespace
}  // namespace millrace
