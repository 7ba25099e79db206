// Loading a model: every tensor's name and shape is checked; a range of layers computes the same bits as the whole.
#include "models/model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

// A model directory of pseudo-random F32 weights, written by hand so that single tensors can be bent.
class TinyFolder {
 public:
  explicit TinyFolder(const std::string& architecture, const std::string& model_type, bool tied) {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ =
        std::filesystem::temp_directory_path() / fmt::format("millrace_{}_{}_{}", test->name(), model_type, getpid());
    std::filesystem::create_directories(path_);
    config = Json{{"architectures", {architecture}},
                  {"model_type", model_type},
                  {"hidden_size", 24},
                  {"intermediate_size", 40},
                  {"num_hidden_layers", 3},
                  {"num_attention_heads", 6},
                  {"num_key_value_heads", 2},
                  {"head_dim", 8},
                  {"vocab_size", 50},
                  {"max_position_embeddings", 128},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 10000.0},
                  {"hidden_act", "silu"},
                  {"tie_word_embeddings", tied}};
    tensors["model.embed_tokens.weight"] = {50, 24};
    tensors["model.norm.weight"] = {24};
    if (!tied) tensors["lm_head.weight"] = {50, 24};
    for (int i = 0; i < 3; ++i) add_layer(fmt::format("model.layers.{}.", i), model_type);
  }
  ~TinyFolder() { std::filesystem::remove_all(path_); }

  void write() const {
    std::ofstream(path_ / "config.json") << config.dump();
    Json header = Json::object();
    std::vector<float> values;
    uint32_t state = 12345;
    for (const auto& [name, shape] : tensors) {
      const std::size_t begin = values.size() * sizeof(float);
      std::size_t count = 1;
      for (const int64_t d : shape) count *= static_cast<std::size_t>(d);
      if (twins && name == "model.embed_tokens.weight") {
        const std::size_t head = header["lm_head.weight"]["data_offsets"][0].get<std::size_t>() / sizeof(float);
        for (std::size_t i = 0; i < count; ++i) values.push_back(values[head + i]);
        count = 0;
      }
      for (std::size_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        values.push_back((static_cast<float>(state >> 8) / 16777216.0f - 0.5f) * (shape.size() == 1 ? 2.0f : 0.6f));
      }
      header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, values.size() * sizeof(float)}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t size = text.size();
    std::ofstream file(path_ / "model.safetensors", std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), 8);
    file << text;
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  std::string path() const { return path_.string(); }

  Json config;
  std::map<std::string, std::vector<int64_t>> tensors;
  bool twins = false;  // the embedding has the values of the head

 private:
  void add_layer(const std::string& layer, const std::string& type) {
    tensors[layer + "input_layernorm.weight"] = tensors[layer + "post_attention_layernorm.weight"] = {24};
    tensors[layer + "self_attn.q_proj.weight"] = {48, 24};
    tensors[layer + "self_attn.k_proj.weight"] = tensors[layer + "self_attn.v_proj.weight"] = {16, 24};
    tensors[layer + "self_attn.o_proj.weight"] = {24, 48};
    tensors[layer + "mlp.gate_proj.weight"] = tensors[layer + "mlp.up_proj.weight"] = {40, 24};
    tensors[layer + "mlp.down_proj.weight"] = {24, 40};
    if (type == "qwen3") tensors[layer + "self_attn.q_norm.weight"] = tensors[layer + "self_attn.k_norm.weight"] = {8};
    if (type == "qwen2") {
      tensors[layer + "self_attn.q_proj.bias"] = {48};
      tensors[layer + "self_attn.k_proj.bias"] = tensors[layer + "self_attn.v_proj.bias"] = {16};
    }
  }
  std::filesystem::path path_;
};

const std::pair<const char*, const char*> kArchitectures[] = {{"LlamaForCausalLM", "llama"},
                                                              {"MistralForCausalLM", "mistral"},
                                                              {"Qwen2ForCausalLM", "qwen2"},
                                                              {"Qwen3ForCausalLM", "qwen3"}};

Status load_status(const TinyFolder& folder) {
  folder.write();
  return load_model_dir(folder.path()).status();
}

TEST(LoadModel, EveryTensorIsNeededAndShaped) {
  for (const auto& [architecture, type] : kArchitectures) {
    TinyFolder folder(architecture, type, false);
    ASSERT_TRUE(load_status(folder).ok()) << load_status(folder).to_string();
    const auto complete = folder.tensors;
    for (const auto& [name, shape] : complete) {
      folder.tensors = complete;
      folder.tensors.erase(name);
      Status status = load_status(folder);
      EXPECT_FALSE(status.ok()) << type << " without " << name;
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
      folder.tensors = complete;
      folder.tensors[name].back() += 1;
      status = load_status(folder);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << type << " with a wide " << name;
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("model.safetensors"), std::string::npos) << status.message();
    }
  }
}

TEST(LoadModel, UnexpectedTensorsAreErrorsButKnownLeftoversAreNot) {
  TinyFolder folder("Qwen3ForCausalLM", "qwen3", true);
  folder.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {4};
  folder.tensors["lm_head.weight"] = {50, 24};
  folder.twins = true;
  EXPECT_TRUE(load_status(folder).ok()) << load_status(folder).to_string();
  folder.tensors["model.layers.3.input_layernorm.weight"] = {24};
  const Status status = load_status(folder);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("model.layers.3.input_layernorm.weight"), std::string::npos) << status.message();
}

TEST(LoadModel, ATiedHeadThatIsNotTheEmbeddingIsAnError) {
  TinyFolder folder("Qwen3ForCausalLM", "qwen3", true);
  const auto refused = [&] {
    const Status status = load_status(folder);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const char* part : {"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  };
  folder.tensors["lm_head.weight"] = {50, 24};
  refused();
  folder.tensors["lm_head.weight"] = {24, 50};
  folder.twins = true;
  refused();
  // A range behind the first reads neither.
  const auto dir = open_model_dir(folder.path());
  const auto store = std::make_shared<WeightStore>(WeightStore::open(folder.path()).value());
  EXPECT_TRUE(load_model(dir->config, store, LayerRange{1, 2}, 1).ok());
}

TEST(LoadModel, HeadDimOverTheKernelsIsUnsupported) {
  TinyFolder folder("LlamaForCausalLM", "llama", true);
  folder.config["head_dim"] = kernels::kMaxHeadDim + 2;
  EXPECT_EQ(load_status(folder).code(), StatusCode::kUnsupported);
}

TEST(LoadModel, RangesOutsideTheModelAreErrors) {
  TinyFolder folder("LlamaForCausalLM", "llama", true);
  folder.write();
  const auto dir = open_model_dir(folder.path());
  ASSERT_TRUE(dir.ok());
  auto store = std::make_shared<WeightStore>(WeightStore::open(folder.path()).value());
  for (const LayerRange range : {LayerRange{-1, 2}, LayerRange{0, 4}, LayerRange{2, 2}, LayerRange{2, 1}}) {
    EXPECT_EQ(load_model(dir->config, store, range, 1).status().code(), StatusCode::kInvalidArgument);
  }
}

// The second range of a model: its folder needs the tensors of that range alone, and may hold those of others.
TEST(LoadModel, ARangeNeedsOnlyItsTensors) {
  for (const auto& [architecture, type] : kArchitectures) {
    TinyFolder folder(architecture, type, false);
    const auto load = [&](LayerRange range) {
      folder.write();
      const auto dir = open_model_dir(folder.path());
      auto store = std::make_shared<WeightStore>(WeightStore::open(folder.path()).value());
      auto model = load_model(dir.value().config, store, range, 1);
      if (model.ok()) {
        EXPECT_EQ((*model)->weights().entries().contains("model.norm.weight"), range.begin == 0);
      }
      return model.status();
    };
    const auto all = folder.tensors;
    const auto keep = [&](auto&& wanted) {
      folder.tensors.clear();
      for (const auto& [name, shape] : all) {
        if (wanted(name)) folder.tensors[name] = shape;
      }
    };
    const auto upper = [](const std::string& name) { return name.starts_with("model.layers.2."); };
    keep(upper);
    EXPECT_TRUE(load({2, 3}).ok()) << load({2, 3}).to_string();
    EXPECT_FALSE(load({1, 3}).ok());
    folder.tensors["model.layers.2.self_attn.other.weight"] = {4};
    EXPECT_EQ(load({2, 3}).code(), StatusCode::kInvalidArgument);
    keep([&](const std::string& name) { return !upper(name); });
    EXPECT_TRUE(load({0, 2}).ok()) << load({0, 2}).to_string();
    folder.tensors["model.layers.3.input_layernorm.weight"] = {24};
    EXPECT_EQ(load({0, 2}).code(), StatusCode::kInvalidArgument);
    folder.tensors = all;
    EXPECT_TRUE(load({1, 2}).ok()) << load({1, 2}).to_string();
  }
}

// Ranges [0, a) and [a, layers) pass on hidden rows, and the first one turns them into logits; together they are the
// whole model, to the bit.
TEST(Model, LayerRangesComposeToTheSameBits) {
  const std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8};
  const kernels::Isa isa = kernels::resolve_isa().value();
  for (const auto& [architecture, type] : kArchitectures) {
    TinyFolder folder(architecture, type, false);
    folder.write();
    const auto dir = open_model_dir(folder.path());
    ASSERT_TRUE(dir.ok()) << dir.status().to_string();
    auto store = std::make_shared<WeightStore>(WeightStore::open(folder.path()).value());
    SequenceEngine complete(load_model(dir->config, store, 1).value(), isa, 1, 4, 32);
    const auto wanted = complete.logits(tokens, 0);
    for (int cut = 1; cut < 3; ++cut) {
      SequenceEngine first(load_model(dir->config, store, LayerRange{0, cut}, 1).value(), isa, 1, 4, 32);
      SequenceEngine second(load_model(dir->config, store, LayerRange{cut, 3}, 1).value(), isa, 1, 4, 32);
      auto hidden = first.embed(tokens);
      first.forward(hidden, 0);
      second.forward(hidden, 0);
      const auto seen = first.head(hidden);
      ASSERT_EQ(seen.size(), wanted.size());
      EXPECT_EQ(std::memcmp(seen.data(), wanted.data(), wanted.size() * sizeof(float)), 0) << type << " cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace millrace
