// config.json against what transformers reads from the same text (tests/oracles/formats_config.py), and every way such
// a file can be wrong.
#include "formats/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "formats/mapped_file.h"
#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using nlohmann::json;
using test_files::expect_message;
using test_files::TempDir;

const std::string kGolden = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/formats/";

json small_config() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
      "vocab_size": 300, "max_position_embeddings": 512, "rope_theta": 10000.0, "torch_dtype": "float32"})");
}

std::vector<int32_t> as_list(const std::optional<int32_t>& id) {
  return id ? std::vector<int32_t>{*id} : std::vector<int32_t>{};
}

void expect_vision(const ModelConfig& config, const json& read) {
  ASSERT_EQ(config.vision.has_value(), read.contains("vision"));
  if (!config.vision) return;
  EXPECT_EQ(config.rope.mrope_section, (read["mrope_section"].get<std::array<int, 3>>()));
  const VisionConfig& seen = *config.vision;
  const json& wanted = read["vision"];
  EXPECT_EQ(seen.depth, wanted["depth"]);
  EXPECT_EQ(seen.hidden_size, wanted["hidden_size"]);
  EXPECT_EQ(seen.intermediate_size, wanted["intermediate_size"]);
  EXPECT_EQ(seen.heads, wanted["heads"]);
  EXPECT_EQ(json({seen.channels, seen.temporal_patch_size, seen.patch_size, seen.patch_size}), wanted["patch"]);
  EXPECT_EQ(seen.merge_size, wanted["merge_size"]);
  EXPECT_EQ(seen.out_hidden_size, wanted["out_hidden_size"]);
  EXPECT_EQ(seen.position_edge * seen.position_edge, wanted["positions"]);
  EXPECT_EQ(json(seen.deepstack), wanted["deepstack"]);
  EXPECT_EQ(seen.activation == VisionActivation::kGeluTanh, wanted["tanh"]);
  EXPECT_EQ(json({seen.image_token_id, seen.video_token_id, seen.vision_start_token_id, seen.vision_end_token_id}),
            wanted["tokens"]);
}

void expect_audio(const ModelConfig& config, const json& read) {
  ASSERT_EQ(config.audio.has_value(), read.contains("audio"));
  if (!config.audio) return;
  EXPECT_EQ(config.vision->merger_names, MergerNames::kQwen3Omni);
  const AudioConfig& seen = *config.audio;
  const json& wanted = read["audio"];
  EXPECT_EQ(seen.mel_bins, wanted["mel_bins"]);
  EXPECT_EQ(seen.layers, wanted["layers"]);
  EXPECT_EQ(seen.heads, wanted["heads"]);
  EXPECT_EQ(seen.ffn, wanted["ffn"]);
  EXPECT_EQ(seen.d_model, wanted["d_model"]);
  EXPECT_EQ(json({seen.n_window, seen.n_window_infer, seen.conv_chunksize}), wanted["windows"]);
  EXPECT_EQ(seen.output_dim, wanted["output_dim"]);
  EXPECT_EQ(seen.downsample_hidden_size, wanted["channels"]);
  EXPECT_EQ(seen.max_source_positions, wanted["positions"]);
  EXPECT_EQ(seen.activation == AudioActivation::kGeluTanh, wanted["tanh"]);
  EXPECT_EQ(seen.position_id_per_seconds, wanted["positions_per_second"]);
  EXPECT_EQ(json({seen.audio_token_id, seen.audio_start_token_id, seen.audio_end_token_id}), wanted["tokens"]);
}

TEST(ModelConfig, ReadsWhatTransformersReads) {
  const auto text = read_small_file(kGolden + "configs.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const json rows = json::parse(*text);
  EXPECT_GE(rows.size(), 50u);
  for (const json& row : rows) {
    SCOPED_TRACE(row["name"].get<std::string>());
    const auto config = parse_model_config(row["config"].get<std::string>(), "config.json");
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    const json& read = row["read"];
    EXPECT_EQ(config->head_dim, read["head_dim"]);
    EXPECT_EQ(config->kv_heads, read["kv_heads"]);
    EXPECT_EQ(config->max_position_embeddings, read["max_position_embeddings"]);
    EXPECT_EQ(config->rms_norm_eps, read["rms_norm_eps"]);
    EXPECT_EQ(config->tie_word_embeddings, read["tie"]);
    EXPECT_EQ(config->qkv_bias, read["qkv_bias"]);
    EXPECT_EQ(config->o_proj_bias, read["o_bias"]);
    EXPECT_EQ(config->mlp_bias, read["mlp_bias"]);
    EXPECT_EQ(config->qk_norm, read["qk_norm"]);
    EXPECT_EQ(config->layer_window, read["windows"].get<std::vector<int>>());
    EXPECT_EQ(parameter_count(*config), read["parameters"]);
    EXPECT_EQ(rope_type_name(config->rope.type), read["rope_type"]);
    EXPECT_EQ(config->rope.theta, read["rope_theta"]);
    EXPECT_EQ(config->rope.factor, read["factor"]);
    EXPECT_EQ(config->rope.original_max_position_embeddings, read["original"]);
    EXPECT_EQ(config->rope.attention_factor, read["attention_factor"]);
    EXPECT_EQ(config->eos_token_ids, read["eos"].get<std::vector<int32_t>>());
    EXPECT_EQ(as_list(config->bos_token_id), read["bos"].get<std::vector<int32_t>>());
    EXPECT_EQ(as_list(config->pad_token_id), read["pad"].get<std::vector<int32_t>>());
    ASSERT_EQ(config->num_experts > 0, !read["moe"].empty());
    for (int i = 0; config->num_experts > 0 && i < config->layers; ++i) {
      const json& layer = read["moe"][static_cast<std::size_t>(i)];
      ASSERT_EQ(config->has_experts(i), !layer.empty()) << i;
      if (layer.empty()) continue;
      EXPECT_EQ(config->num_experts, layer["experts"]);
      EXPECT_EQ(config->experts_per_token, layer["top"]);
      EXPECT_EQ(config->norm_topk_prob, layer["norm"]);
      EXPECT_EQ(config->moe_intermediate_size, layer["inner"]);
    }
    expect_vision(*config, read);
    expect_audio(*config, read);
    const std::string dtype = read["dtype"];
    EXPECT_EQ(config->dtype.has_value(), !dtype.empty());
    if (config->dtype) {
      EXPECT_EQ(*config->dtype, dtype == "float16" ? DType::kF16 : dtype == "bfloat16" ? DType::kBF16 : DType::kF32);
    }
  }
}

TEST(ModelConfig, KvBytesPerToken) {
  const auto config = parse_model_config(small_config().dump(), "p");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(kv_bytes_per_token(*config, DType::kF32), 2 * 4 * 2 * 16 * 4);
  EXPECT_EQ(kv_bytes_per_token(*config, DType::kBF16), 2 * 4 * 2 * 16 * 2);
}

struct BadField {
  std::string key;
  std::string value;  // JSON; empty: the field is removed
  StatusCode code;
  std::vector<std::string> parts;
};

const auto kBad = StatusCode::kInvalidArgument;
const auto kNo = StatusCode::kUnsupported;

void expect_refused(const std::vector<BadField>& cases, const json& start) {
  for (const BadField& c : cases) {
    json config = start;
    config.erase(c.key);
    std::string text = config.dump();
    if (!c.value.empty()) text.insert(1, "\"" + c.key + "\":" + c.value + (config.empty() ? "" : ","));
    const auto parsed = parse_model_config(text, "dir/config.json");
    ASSERT_FALSE(parsed.ok()) << c.key << " " << c.value;
    EXPECT_EQ(parsed.status().code(), c.code) << parsed.status().to_string();
    expect_message(parsed.status().message(), {"dir/config.json: ", "wanted"});
    expect_message(parsed.status().message(), c.parts);
  }
}

TEST(ModelConfig, BadSizesAreRefusedBeforeAnythingIsAllocated) {
  std::vector<BadField> cases = {
      {"hidden_size", "0", kBad, {"hidden_size is 0", "1 to 131072"}},
      {"hidden_size", "-64", kBad, {"hidden_size is -64"}},
      {"hidden_size", "1000000000000", kBad, {"1000000000000"}},
      {"hidden_size", "64.5", kBad, {"hidden_size is a number", "wanted an integer"}},
      {"hidden_size", "\"64\"", kBad, {"hidden_size is a string"}},
      {"hidden_size", "18446744073709551615", kBad, {"18446744073709551615"}},
      {"hidden_size", "66", kBad, {"66", "multiple of num_attention_heads", "4"}},
      {"num_attention_heads", "5", kBad, {"num_key_value_heads is 2", "divisor", "5"}},
      {"num_attention_heads", "0", kBad, {"num_attention_heads is 0"}},
      {"num_key_value_heads", "8", kBad, {"num_key_value_heads is 8", "divisor", "4"}},
      {"num_key_value_heads", "3", kBad, {"num_key_value_heads is 3"}},
      {"num_key_value_heads", "0", kBad, {"num_key_value_heads is 0"}},
      {"num_hidden_layers", "1000000000", kBad, {"num_hidden_layers is 1000000000", "1 to 1024"}},
      {"num_hidden_layers", "0", kBad, {"num_hidden_layers is 0"}},
      {"vocab_size", "0", kBad, {"vocab_size is 0"}},
      {"vocab_size", "1000000000", kBad, {"vocab_size is 1000000000", "4194304"}},
      {"intermediate_size", "0", kBad, {"intermediate_size is 0"}},
      {"max_position_embeddings", "0", kBad, {"max_position_embeddings is 0"}},
      {"head_dim", "15", kBad, {"head_dim is 15", "even"}},
      {"head_dim", "0", kBad, {"head_dim is 0"}},
      {"rms_norm_eps", "0", kBad, {"rms_norm_eps is 0"}},
      {"rms_norm_eps", "-1e-6", kBad, {"rms_norm_eps is -1e-06"}},
      {"rms_norm_eps", "\"1e-6\"", kBad, {"rms_norm_eps is a string"}},
      {"eos_token_id", "300", kBad, {"eos_token_id is 300", "0 to 299"}},
      {"eos_token_id", "[1, -2]", kBad, {"eos_token_id is -2"}},
      {"eos_token_id", "\"</s>\"", kBad, {"eos_token_id is of type string"}},
      {"tie_word_embeddings", "1", kBad, {"tie_word_embeddings is an integer", "boolean"}},
  };
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    cases.push_back({key, "", kBad, {std::string(key) + " is missing"}});
  }
  expect_refused(cases, small_config());
}

TEST(ModelConfig, UnknownArchitecturesAndFeaturesAreRefused) {
  const std::string all =
      "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM";
  expect_refused(
      {
          {"architectures", R"(["GPT2LMHeadModel"])", kNo, {"\"GPT2LMHeadModel\"", all}},
          {"architectures", R"(["LlamaForSequenceClassification"])", kNo, {all}},
          {"architectures", "[]", kBad, {"architectures"}},
          {"architectures", "\"LlamaForCausalLM\"", kBad, {"architectures is string"}},
          {"hidden_act", "\"gelu\"", kNo, {"hidden_act is \"gelu\"", "silu"}},
          {"torch_dtype", "\"float8_e4m3fn\"", kNo, {"float8_e4m3fn", "bfloat16"}},
          {"quantization_config", R"({"bits":4})", kNo, {"quantization_config"}},
          {"partial_rotary_factor", "0.5", kNo, {"partial_rotary_factor is 0.5"}},
          {"is_causal", "false", kNo, {"is_causal is false", "wanted true"}},
          {"is_causal", "0", kBad, {"is_causal is an integer"}},
          {"model_type", "\"mistral\"", kBad, {"model_type is \"mistral\"", "\"llama\"", "LlamaForCausalLM"}},
          {"model_type", "\"gpt2\"", kBad, {"model_type is \"gpt2\"", "\"llama\""}},
          {"layer_types",
           R"(["sliding_attention","full_attention","full_attention","full_attention"])",
           kNo,
           {"layer_types[0]", "sliding_attention"}},
          {"layer_types", R"(["full_attention"])", kBad, {"layer_types has 1 entries", "4"}},
      },
      small_config());
  json nameless = small_config();
  nameless.erase("architectures");
  EXPECT_TRUE(parse_model_config(nameless.dump(), "p").ok());
  json untyped = small_config();
  untyped.erase("model_type");
  EXPECT_TRUE(parse_model_config(untyped.dump(), "p").ok());
  json causal = small_config();
  causal["is_causal"] = true;
  EXPECT_TRUE(parse_model_config(causal.dump(), "p").ok());
  expect_refused({{"model_type", "\"gpt2\"", kNo, {"\"gpt2\"", all}}, {"model_type", "", kNo, {"missing", all}}},
                 nameless);
  json mistral = small_config();
  mistral["architectures"][0] = "MistralForCausalLM";
  mistral["model_type"] = "mistral";
  expect_refused({{"layer_types",
                   R"(["sliding_attention","full_attention","full_attention","full_attention"])",
                   kNo,
                   {"layer_types mixes"}},
                  {"sliding_window", "0", kBad, {"sliding_window is 0"}}},
                 mistral);
}

TEST(ModelConfig, BadExpertsAreRefused) {
  json config = small_config();
  config["architectures"][0] = "Qwen3MoeForCausalLM";
  config["model_type"] = "qwen3_moe";
  config["num_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  ASSERT_TRUE(parse_model_config(config.dump(), "p").ok());
  expect_refused(
      {
          {"num_experts", "0", kBad, {"num_experts is 0", "1 to 1024"}},
          {"num_experts", "1000000000", kBad, {"num_experts is 1000000000", "1 to 1024"}},
          {"num_experts_per_tok", "9", kBad, {"num_experts_per_tok is 9", "1 to 8"}},
          {"num_experts_per_tok", "0", kBad, {"num_experts_per_tok is 0"}},
          {"moe_intermediate_size", "0", kBad, {"moe_intermediate_size is 0"}},
          {"decoder_sparse_step", "0", kBad, {"decoder_sparse_step is 0"}},
          {"norm_topk_prob", "1", kBad, {"norm_topk_prob is an integer", "boolean"}},
          {"mlp_only_layers", "3", kBad, {"mlp_only_layers is integer", "a list"}},
          {"mlp_only_layers", "[4]", kBad, {"mlp_only_layers holds 4", "0 to 3"}},
          {"mlp_only_layers", "[-1]", kBad, {"mlp_only_layers holds -1"}},
          {"mlp_only_layers", "[18446744073709551615]", kBad, {"mlp_only_layers holds 18446744073709551615"}},
          {"mlp_only_layers", "[\"a\"]", kBad, {"mlp_only_layers holds string"}},
      },
      config);
}

TEST(ModelConfig, BadRopeIsRefused) {
  const std::string llama3 = R"("rope_type":"llama3","factor":8,"low_freq_factor":1,)";
  expect_refused(
      {
          {"rope_theta", "0", kBad, {"rope_theta is 0"}},
          {"rope_theta", "-1", kBad, {"rope_theta is -1"}},
          {"rope_theta", "NaN", kBad, {"malformed JSON"}},
          {"rope_theta", "1e400", kBad, {}},
          {"rope_theta", "1e300", kBad, {"rope_theta is 1e+300"}},
          {"rope_theta", "\"big\"", kBad, {"rope_theta is a string"}},
          {"rope_scaling", "7", kBad, {"rope_scaling is of type integer"}},
          {"rope_scaling", R"({"type":"linear"})", kBad, {"rope_scaling: factor is missing"}},
          {"rope_scaling", R"({"type":"linear","factor":0})", kBad, {"rope_scaling: factor is 0"}},
          {"rope_scaling",
           R"({"type":"yarn","factor":4})",
           kNo,
           {"rope_type is \"yarn\"", "default, linear or llama3"}},
          {"rope_scaling", R"({"rope_type":"dynamic","factor":4})", kNo, {"\"dynamic\""}},
          {"rope_scaling", R"({"rope_type":"longrope"})", kNo, {"\"longrope\""}},
          {"rope_scaling",
           "{" + llama3 + R"("original_max_position_embeddings":64})",
           kBad,
           {"high_freq_factor is missing"}},
          {"rope_scaling",
           "{" + llama3 + R"("high_freq_factor":1})",
           kBad,
           {"high_freq_factor is 1", "low_freq_factor"}},
          {"rope_scaling",
           "{" + llama3 + R"("high_freq_factor":4,"original_max_position_embeddings":0})",
           kBad,
           {"original_max_position_embeddings is 0"}},
          {"rope_parameters", R"({"full_attention":{"rope_type":"default"}})", kNo, {"one rope for all layers"}},
          {"rope_parameters", R"({"rope_type":"default","partial_rotary_factor":0.25})", kNo, {"0.25"}},
          {"rope_parameters", R"({"rope_type":"default","rope_theta":0})", kBad, {"rope_parameters: rope_theta is 0"}},
      },
      small_config());
}

TEST(ModelConfig, MalformedTextIsRefused) {
  for (const std::string text : {"", "{", "[]", "null", "{\"hidden_size\": 1, \"hidden_size\": 2}", "\xff", "{} x"}) {
    const auto config = parse_model_config(text, "dir/config.json");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
    expect_message(config.status().message(), {"dir/config.json: ", "wanted"});
  }
  EXPECT_FALSE(parse_model_config(std::string(10000, '['), "p").ok());
}

TEST(ModelConfig, MutationsNeverCrash) {
  json rich = small_config();
  rich["rope_scaling"] = json::parse(R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
      "high_freq_factor":4.0,"original_max_position_embeddings":256})");
  rich["layer_types"] = json::array({"full_attention", "full_attention", "full_attention", "full_attention"});
  rich["eos_token_id"] = json::array({1, 2, 3});
  const std::string start = rich.dump();
  ASSERT_TRUE(parse_model_config(start, "p").ok());
  const std::string alphabet = "{}[],:\"0123456789-.eEnulltrue";
  std::mt19937 random(7);
  int valid = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = start;
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      const char byte = alphabet[random() % alphabet.size()];
      if (random() % 2) {
        text[at] = byte;
      } else if (random() % 2) {
        text.insert(at, 1, byte);
      } else {
        text.erase(at, 1);
      }
    }
    const auto config = parse_model_config(text, "p");
    if (!config.ok()) {
      expect_message(config.status().message(), {"p: "});
      continue;
    }
    ++valid;
    ASSERT_EQ(config->heads % config->kv_heads, 0);
    ASSERT_EQ(config->head_dim % 2, 0);
    ASSERT_EQ(config->layer_window.size(), static_cast<std::size_t>(config->layers));
    ASSERT_GT(parameter_count(*config), 0);
    ASSERT_GT(config->rope.theta, 0);
  }
  EXPECT_GT(valid, 100);
}

TEST(GenerationConfig, ReadsDefaultsAndFallsBackToTheModelsIds) {
  const auto model = parse_model_config(small_config().dump(), "p");
  ASSERT_TRUE(model.ok());
  auto out = parse_generation_config("{}", "p", *model);
  ASSERT_TRUE(out.ok());
  EXPECT_FALSE(out->temperature || out->top_k);
  EXPECT_TRUE(out->not_followed.empty());
  EXPECT_EQ(out->eos_token_ids, std::vector<int32_t>{2});
  out = parse_generation_config(R"({"do_sample":true,"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0.05,
      "repetition_penalty":1.1,"max_new_tokens":99,"eos_token_id":[7,8],"bos_token_id":3,"pad_token_id":4})",
                                "p", *model);
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  EXPECT_EQ(out->temperature, 0.6);
  EXPECT_EQ(out->top_p, 0.95);
  EXPECT_EQ(out->top_k, 20);
  EXPECT_EQ(out->min_p, 0.05);
  EXPECT_EQ(out->repetition_penalty, 1.1);
  EXPECT_EQ(out->not_followed, std::vector<std::string>{"max_new_tokens"});
  EXPECT_EQ(out->eos_token_ids, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(out->bos_token_id, 3);
  EXPECT_EQ(out->pad_token_id, 4);
  for (const std::string bad : {R"({"temperature":-1})", R"({"temperature":2.1})", R"({"top_p":0})", R"({"top_p":1.5})",
                                R"({"top_k":-1})", R"({"min_p":2})", R"({"repetition_penalty":0})",
                                R"({"repetition_penalty":2.1})", R"({"eos_token_id":300})", "[]"}) {
    const auto refused = parse_generation_config(bad, "dir/generation_config.json", *model);
    ASSERT_FALSE(refused.ok()) << bad;
    expect_message(refused.status().message(), {"dir/generation_config.json: ", "wanted"});
  }
}

TEST(GenerationConfig, NamesWhatItDoesNotFollow) {
  const auto model = parse_model_config(small_config().dump(), "p");
  ASSERT_TRUE(model.ok());
  const auto not_followed = [&](const char* text) {
    const auto out = parse_generation_config(text, "p", *model);
    EXPECT_TRUE(out.ok()) << out.status().to_string();
    return out.ok() ? out->not_followed : std::vector<std::string>();
  };
  using Names = std::vector<std::string>;
  // As save_pretrained() writes fields that are off, in whichever form.
  EXPECT_EQ(not_followed(R"({"do_sample":true,"suppress_tokens":null,"bad_words_ids":[],"no_repeat_ngram_size":0,
      "num_beams":1,"max_length":20,"stop_strings":"","typical_p":1.0,"use_cache":true,
      "remove_invalid_values":false,"transformers_version":"5.12.0"})"),
            Names{});
  EXPECT_EQ(not_followed(R"({"do_sample":false,"max_new_tokens":2048,"suppress_tokens":[1,2],"num_beams":4,
      "stop_strings":["a"],"no_repeat_ngram_size":3,"forced_eos_token_id":0,"guidance_scale":1.5})"),
            (Names{"do_sample", "forced_eos_token_id", "guidance_scale", "max_new_tokens", "no_repeat_ngram_size",
                   "num_beams", "stop_strings", "suppress_tokens"}));
}

TEST(ModelDir, ReportsWhatIsMissing) {
  TempDir dir;
  const Status empty = open_model_dir(dir.path()).status();
  EXPECT_EQ(empty.code(), StatusCode::kNotFound);
  expect_message(empty.message(), {"no config.json in " + dir.path(), "wanted a Hugging Face model directory"});
  EXPECT_EQ(open_model_dir(dir.file("gone")).status().code(), StatusCode::kNotFound);
  const std::string path = dir.write("config.json", small_config().dump());
  expect_message(open_model_dir(path).status().message(), {path, "is a file", "directory"});
  auto opened = open_model_dir(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->config.hidden_size, 64);
  EXPECT_EQ(opened->generation.eos_token_ids, std::vector<int32_t>{2});
  const std::string generation = dir.write("generation_config.json", R"({"top_k":-5})");
  expect_message(open_model_dir(dir.path()).status().message(), {generation, "top_k is -5"});
  dir.write("config.json", std::string(kMaxConfigFileBytes + 1, ' '));
  EXPECT_EQ(open_model_dir(dir.path()).status().code(), StatusCode::kTooLarge);
}

}  // namespace
}  // namespace millrace
