// A model of tensors that are added one by one computes the bits of one that was loaded from their file.
#include "models/live_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "models/testing/model_testing.h"
#include "models/vision/vision_tower.h"

namespace millrace {
namespace {

// Tied and untied heads, one file and several, experts, biases; of tiny_llama_linear and tiny_qwen3_moe, whole matrices
// are quantized.
constexpr const char* kModels[] = {"tiny_qwen3",         "tiny_qwen3_moe",    "tiny_llama_gqa2_tied",
                                   "tiny_qwen2",         "tiny_mistral_full", "tiny_llama_linear",
                                   "tiny_qwen3_sharded", "tiny_qwen3_moe_raw"};
constexpr std::optional<DType> kQuantized[] = {std::nullopt, DType::kQ8_0, DType::kQ4_0};

std::string folder(const std::string& name) { return MILLRACE_SOURCE_DIR "/tests/golden/models/" + name; }

struct Loaded {
  ThreadPool pool{2};
  LoadOptions options;
  ModelConfig config;
  std::shared_ptr<const Model> model;

  Loaded(const std::string& name, std::optional<DType> quantize, uint64_t version) {
    options = {.pool = &pool, .isa = kernels::resolve_isa().value(), .quantize = quantize};
    config = open_model_dir(folder(name)).value().config;
    auto store = std::make_shared<WeightStore>(WeightStore::open(folder(name)).value());
    model = load_model(config, store, version, options).value();
  }
};

std::vector<float> logits(const std::shared_ptr<const Model>& model) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < 21; ++i) prompt.push_back(i * 37 % model->config().vocab_size);
  return SequenceEngine(model, kernels::resolve_isa().value(), 1, 16, 32).logits(prompt, 0);
}

// Every tensor of the file, with the bytes changed by `change`.
template <typename Change>
std::vector<std::pair<TensorSpec, Buffer>> tensors_of(const std::string& name, Change change) {
  WeightStore store = WeightStore::open(folder(name)).value();
  std::vector<std::pair<TensorSpec, Buffer>> out;
  for (const std::string& tensor : store.names()) {
    const TensorView view = store.get_any(tensor).value();
    Buffer bytes(view.size_bytes());
    std::memcpy(bytes.data(), view.data, view.size_bytes());
    change(tensor, bytes);
    out.emplace_back(TensorSpec{tensor, view.dtype, view.shape}, std::move(bytes));
  }
  return out;
}

std::vector<int32_t> greedy(const std::shared_ptr<const Model>& model, int count) {
  std::vector<int32_t> tokens = {1, 38, 75};
  while (static_cast<int>(tokens.size()) < count) {
    const std::vector<float> all = SequenceEngine(model, kernels::resolve_isa().value(), 1, 16, 32).logits(tokens, 0);
    const auto row = all.end() - model->config().vocab_size;
    tokens.push_back(static_cast<int32_t>(std::max_element(row, all.end()) - row));
  }
  return tokens;
}

// By name: the checksum of each tensor's bytes as they came.
std::map<std::string, uint64_t> checksums(const Model& model) {
  std::map<std::string, uint64_t> out;
  for (const auto& [name, entry] : model.weights().entries()) out[name] = entry.checksum.value_or(0);
  return out;
}

bool has_quantized_matrix(const Model& model, DType dtype) {
  return std::any_of(model.weights().entries().begin(), model.weights().entries().end(),
                     [dtype](const auto& entry) { return entry.second.weight.view.dtype == dtype; });
}

void zero_norms(const std::string& name, Buffer& bytes) {
  if (name.find("layernorm") != std::string::npos) std::memset(bytes.data(), 0, bytes.size_bytes());
}

TEST(LiveWeights, TheSameBytesComputeTheSameBits) {
  for (const char* name : kModels) {
    for (const std::optional<DType> quantize : kQuantized) {
      SCOPED_TRACE(testing::Message() << name << " " << dtype_name(quantize.value_or(DType::kF32)));
      const Loaded loaded(name, quantize, 1);
      // Other weights first: what serves is none of the file's.
      LiveWeights other(loaded.model, loaded.options);
      for (auto& [spec, bytes] : tensors_of(name, zero_norms)) ASSERT_TRUE(other.add(spec, bytes).ok());
      const std::shared_ptr<const Model> zeroed = other.make(2).value();
      EXPECT_NE(logits(zeroed), logits(loaded.model));
      EXPECT_NE(zeroed->weights_checksum(), loaded.model->weights_checksum());

      LiveWeights live(zeroed, loaded.options);
      std::vector<TensorSpec> specs;
      auto tensors = tensors_of(name, [](const std::string&, Buffer&) {});
      for (const auto& [spec, bytes] : tensors) specs.push_back(spec);
      const Status checked = live.check(specs);
      ASSERT_TRUE(checked.ok()) << checked.to_string();
      EXPECT_TRUE(live.covers_all(specs));
      for (auto& [spec, bytes] : tensors) ASSERT_TRUE(live.add(spec, bytes).ok());
      const std::shared_ptr<const Model> made = live.make(3).value();
      EXPECT_EQ(made->weight_version(), 3u);
      EXPECT_EQ(logits(made), logits(loaded.model));
      EXPECT_EQ(greedy(made, 12), greedy(loaded.model, 12));
      EXPECT_EQ(checksums(*made), checksums(*loaded.model));
      EXPECT_EQ(made->weights_checksum(), loaded.model->weights_checksum());
    }
  }
}

// Else the test above shows nothing about quantized weights.
TEST(LiveWeights, MatricesOfTheseModelsAreQuantized) {
  for (const char* name : {"tiny_llama_linear", "tiny_qwen3_moe"}) {
    for (const DType quantize : {DType::kQ8_0, DType::kQ4_0}) {
      EXPECT_TRUE(has_quantized_matrix(*Loaded(name, quantize, 1).model, quantize)) << name << dtype_name(quantize);
    }
  }
}

const std::string kStackedModel = "../vision/moe";  // as transformers 5 saves it; a store takes it apart

// Matrices [rows, columns] that follow each other, or each one transposed.
Buffer stacked(const std::vector<std::byte>& matrices, int64_t rows, int64_t columns, int size, bool transposed) {
  Buffer out(matrices.size());
  if (!transposed) std::memcpy(out.data(), matrices.data(), matrices.size());
  const int64_t count = transposed ? std::ssize(matrices) / size : 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
    const int64_t to = (matrix * columns + column) * rows + row;
    std::memcpy(out.data() + to * size, matrices.data() + i * size, static_cast<std::size_t>(size));
  }
  return out;
}

// The language model's tensors, the experts of each layer under two names: as transformers 5 has them in memory, or as
// published files store them.
std::vector<std::pair<TensorSpec, Buffer>> with_stacked_experts(const ModelConfig& config, bool transposed) {
  std::vector<std::pair<TensorSpec, Buffer>> out;
  std::map<std::string, std::vector<std::byte>> gate_up, down;  // by layer
  DType dtype = DType::kF32;
  // By name: of an expert down_proj, gate_proj, up_proj.
  for (auto& [spec, bytes] : tensors_of(kStackedModel, [](const std::string&, Buffer&) {})) {
    const std::size_t at = spec.name.find("experts.");
    if (spec.name.starts_with("visual.")) continue;
    if (at == std::string::npos) {
      out.emplace_back(spec, std::move(bytes));
      continue;
    }
    auto& to = (spec.name.find("down_proj") == std::string::npos ? gate_up : down)[spec.name.substr(0, at + 8)];
    to.insert(to.end(), bytes.data(), bytes.data() + bytes.size_bytes());
    dtype = spec.dtype;
  }
  const int64_t e = config.num_experts, h = config.hidden_size, i = config.moe_intermediate_size;
  const auto size = static_cast<int>(dtype_size(dtype));
  for (const auto& [layer, matrices] : gate_up) {
    const Shape shape = transposed ? Shape{e, h, 2 * i} : Shape{e, 2 * i, h};
    out.emplace_back(TensorSpec{layer + "gate_up_proj", dtype, shape}, stacked(matrices, 2 * i, h, size, transposed));
  }
  for (const auto& [layer, matrices] : down) {
    const Shape shape = transposed ? Shape{e, i, h} : Shape{e, h, i};
    out.emplace_back(TensorSpec{layer + "down_proj", dtype, shape}, stacked(matrices, h, i, size, transposed));
  }
  return out;
}

TEST(LiveWeights, StackedExpertsAreThoseOfTheirFile) {
  for (const std::optional<DType> quantize : kQuantized) {
    const Loaded loaded(kStackedModel, quantize, 1);
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(testing::Message() << transposed << " " << dtype_name(quantize.value_or(DType::kF32)));
      LiveWeights other(loaded.model, loaded.options);
      for (auto& [spec, bytes] : with_stacked_experts(loaded.config, transposed)) {
        std::memset(bytes.data(), 0, bytes.size_bytes());
        ASSERT_TRUE(other.add(spec, bytes).ok());
      }
      const std::shared_ptr<const Model> zeroed = other.make(2).value();
      EXPECT_NE(logits(zeroed), logits(loaded.model));
      LiveWeights live(zeroed, loaded.options);
      auto tensors = with_stacked_experts(loaded.config, transposed);
      std::vector<TensorSpec> specs;
      for (const auto& [spec, bytes] : tensors) specs.push_back(spec);
      const Status checked = live.check(specs);
      ASSERT_TRUE(checked.ok()) << checked.to_string();
      EXPECT_TRUE(live.covers_all(specs));
      specs.pop_back();
      EXPECT_FALSE(live.covers_all(specs));
      for (auto& [spec, bytes] : tensors) ASSERT_TRUE(live.add(spec, bytes).ok());
      const std::shared_ptr<const Model> made = live.make(3).value();
      EXPECT_EQ(logits(made), logits(loaded.model));
      EXPECT_EQ(checksums(*made), checksums(*loaded.model));
    }
  }
}

TEST(LiveWeights, StackedExpertsThatAreRefused) {
  const Loaded moe(kStackedModel, std::nullopt, 1), dense("tiny_qwen3", std::nullopt, 1);
  const Loaded square("tiny_qwen3_moe", std::nullopt, 1);  // its hidden size is twice the inner one
  const int64_t e = moe.config.num_experts, h = moe.config.hidden_size, i = moe.config.moe_intermediate_size;
  const std::string prefix = "model.language_model.layers.0.mlp.experts.";
  const auto message = [](const Loaded& loaded, const std::vector<TensorSpec>& tensors) {
    return LiveWeights(loaded.model, loaded.options).check(tensors).message();
  };
  const auto names = [&](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const TensorSpec good{prefix + "down_proj", DType::kF32, {e, h, i}};
  EXPECT_EQ(message(moe, {good}), "");
  names(message(moe, {{good.name, DType::kF32, {e + 1, h, i}}}), "experts.down_proj\" has shape");
  names(message(moe, {good, {prefix + "1.down_proj.weight", DType::kF32, {h, i}}}), "named twice");
  names(message(moe, {{"model.layers.99.mlp.experts.down_proj", DType::kF32, {e, h, i}}}), "is no tensor");
  names(message(dense, {good}), "is no tensor");
  const int64_t width = square.config.hidden_size;
  ASSERT_EQ(width, 2 * square.config.moe_intermediate_size);
  names(message(square, {{prefix + "gate_up_proj", DType::kF32, {square.config.num_experts, width, width}}}),
        "wanted a tensor for each expert");
}

TEST(LiveWeights, WhatIsNotSentIsThatOfTheServingModel) {
  const Loaded loaded("tiny_qwen3", std::nullopt, 1);
  LiveWeights part(loaded.model, loaded.options);
  LiveWeights rest(loaded.model, loaded.options);
  std::vector<TensorSpec> specs;
  for (auto& [spec, bytes] : tensors_of("tiny_qwen3", zero_norms)) {
    if (spec.name.find("layernorm") == std::string::npos) continue;
    specs.push_back(spec);
    ASSERT_TRUE(part.add(spec, bytes).ok());
  }
  EXPECT_FALSE(part.covers_all(specs));
  for (auto& [spec, bytes] : tensors_of("tiny_qwen3", zero_norms)) ASSERT_TRUE(rest.add(spec, bytes).ok());
  EXPECT_EQ(logits(part.make(2).value()), logits(rest.make(2).value()));
}

TEST(LiveWeights, ProblemsAreNamedTheFirstFive) {
  const Loaded loaded("tiny_qwen3", std::nullopt, 1);
  const LiveWeights live(loaded.model, loaded.options);
  const Shape norm{loaded.config.hidden_size};
  const TensorSpec good{"model.norm.weight", DType::kF32, norm};
  EXPECT_TRUE(live.check({good}).ok());
  EXPECT_TRUE(live.check({good, {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {7}}}).ok());
  const Status status = live.check({good,
                                    good,
                                    {"lm_head.wait", DType::kF32, norm},
                                    {"model.norm.weigh", DType::kF32, norm},
                                    {"model.layers.0.input_layernorm.weight", DType::kF32, {3}},
                                    {"a\n", DType::kF32, norm},
                                    {"b", DType::kF32, norm},
                                    {"c", DType::kF32, norm}});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* part : {"named twice", "lm_head.wait", "model.norm.weigh", "has shape [3]; wanted", "and 2 more"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status.message();
  }
  EXPECT_EQ(status.message().find("\"c\""), std::string::npos);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

TEST(LiveWeights, ATiedHeadComesUnderEitherName) {
  const char* name = "tiny_llama_gqa2_tied";
  const Loaded loaded(name, std::nullopt, 1);
  const auto copy_of = [](const Buffer& bytes) {
    Buffer out(bytes.size_bytes());
    std::memcpy(out.data(), bytes.data(), bytes.size_bytes());
    return out;
  };
  for (auto& [embedding, bytes] : tensors_of(name, [](const std::string&, Buffer&) {})) {
    if (embedding.name != "model.embed_tokens.weight") continue;
    TensorSpec head = embedding;
    head.name = "lm_head.weight";
    for (const std::vector<TensorSpec>& specs :
         {std::vector{head}, std::vector{embedding, head}, std::vector{head, embedding}}) {
      LiveWeights live(loaded.model, loaded.options);
      ASSERT_TRUE(live.check(specs).ok());
      for (const TensorSpec& spec : specs) {
        Buffer sent = copy_of(bytes);
        ASSERT_TRUE(live.add(spec, sent).ok());
      }
      EXPECT_EQ(logits(live.make(2).value()), logits(loaded.model));
      if (specs.size() == 1) continue;
      LiveWeights apart(loaded.model, loaded.options);
      Buffer first = copy_of(bytes), other = copy_of(bytes);
      other.data()[7] ^= std::byte{1};
      ASSERT_TRUE(apart.add(specs[0], first).ok());
      const Status status = apart.add(specs[1], other);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      for (const char* part : {"lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"}) {
        EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
      }
    }
  }
}

const std::string kVisionFolder = MILLRACE_SOURCE_DIR "/tests/golden/vision/dense";

// A vision-language model by the names that its trainer sends, and what is frozen of it.
struct Vision {
  ThreadPool pool{2};
  LoadOptions options{.pool = &pool, .isa = kernels::resolve_isa().value()};
  WeightStore store = WeightStore::open(kVisionFolder).value();
  std::shared_ptr<const FrozenTensors> frozen =
      std::make_shared<FrozenTensors>(FrozenTensors::read(store, {.vision = true}, pool).value());
  std::shared_ptr<const Model> model =
      load_model(open_model_dir(kVisionFolder).value().config,
                 std::make_shared<WeightStore>(WeightStore::open(kVisionFolder).value()), 1, options)
          .value();

  LiveWeights live() const { return {model, options, frozen}; }
  std::pair<TensorSpec, Buffer> tensor(const std::string& plain, const std::string& sent) {
    const TensorView view = store.get_any(plain).value();
    Buffer bytes(view.size_bytes());
    std::memcpy(bytes.data(), view.data, view.size_bytes());
    return {TensorSpec{sent, view.dtype, view.shape}, std::move(bytes)};
  }
};

TEST(LiveWeights, AVisionTowerMustBeTheOneThatServes) {
  Vision vision;
  LiveWeights live = vision.live();
  auto [qkv, bytes] = vision.tensor("visual.blocks.0.attn.qkv.weight", "model.visual.blocks.0.attn.qkv.weight");
  ASSERT_TRUE(live.check({qkv}).ok());
  EXPECT_TRUE(live.add(qkv, bytes).ok());
  bytes.data()[5] ^= std::byte{1};
  const Status other = live.add(qkv, bytes);
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("visual.blocks.0.attn.qkv.weight"), std::string::npos) << other.message();

  const auto problem = [&](TensorSpec spec) { return live.check({std::move(spec)}); };
  EXPECT_EQ(problem({qkv.name, DType::kF32, qkv.shape}).code(), StatusCode::kUnsupported);
  EXPECT_EQ(problem({qkv.name, qkv.dtype, {3}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(problem({"model.visual.blocks.99.attn.qkv.weight", qkv.dtype, qkv.shape}).code(),
            StatusCode::kInvalidArgument);
  // One tensor under two of its names is named twice.
  EXPECT_EQ(live.check({qkv, {"visual.blocks.0.attn.qkv.weight", qkv.dtype, qkv.shape}}).code(),
            StatusCode::kInvalidArgument);
  // Without a list of frozen ones, they are none of the model's.
  EXPECT_FALSE(LiveWeights(vision.model, vision.options).check({qkv}).ok());
}

TEST(LiveWeights, NamesMayHaveThePrefixOfVisionLanguageModels) {
  Vision vision;
  LiveWeights live = vision.live();
  auto [norm, bytes] = vision.tensor("model.norm.weight", "model.language_model.norm.weight");
  ASSERT_TRUE(live.check({norm}).ok());
  std::memset(bytes.data(), 0, bytes.size_bytes());
  ASSERT_TRUE(live.add(norm, bytes).ok());
  const std::shared_ptr<const Model> made = live.make(2).value();
  EXPECT_NE(checksums(*made)["model.norm.weight"], checksums(*vision.model)["model.norm.weight"]);
  EXPECT_EQ(checksums(*made).size(), checksums(*vision.model).size());
}

// A tower's own sums are of the same bytes: what it has loaded is compared as what was read for it.
TEST(FrozenTensors, ATowerThatWasLoadedIsTheSame) {
  Vision vision;
  const VisionConfig config = *open_model_dir(kVisionFolder).value().config.vision;
  const auto store = std::make_shared<WeightStore>(WeightStore::open(kVisionFolder).value());
  const FrozenTensors frozen = FrozenTensors::of(VisionTower::load(config, store, vision.options).value()->weights());
  WeightStore same = WeightStore::open(kVisionFolder).value();
  const Status compared = frozen.compare(same, vision.pool);
  EXPECT_TRUE(compared.ok()) << compared.to_string();
  auto [qkv, bytes] = vision.tensor("visual.blocks.0.attn.qkv.weight", "visual.blocks.0.attn.qkv.weight");
  EXPECT_TRUE(frozen.check(qkv.name, qkv.dtype, qkv.shape).ok());
  EXPECT_TRUE(frozen.compare(qkv.name, {bytes.data(), bytes.size_bytes()}, vision.pool).ok());
  bytes.data()[bytes.size_bytes() - 1] ^= std::byte{1};
  EXPECT_FALSE(frozen.compare(qkv.name, {bytes.data(), bytes.size_bytes()}, vision.pool).ok());
}

TEST(FrozenTensors, AFolderHasTheSameOrNone) {
  Vision vision;
  WeightStore same = WeightStore::open(kVisionFolder).value();
  EXPECT_TRUE(vision.frozen->compare(same, vision.pool).ok());
  WeightStore text = WeightStore::open(folder("tiny_qwen3")).value();
  EXPECT_TRUE(vision.frozen->compare(text, vision.pool).ok());
  EXPECT_TRUE(FrozenTensors().compare(same, vision.pool).ok());  // what does not serve may be anything
}

const std::string kSpeechFolder = MILLRACE_SOURCE_DIR "/tests/golden/omni/speech";
constexpr FrozenParts kAllParts{.vision = true, .audio = true, .speech = true};

// The bytes of a tensor of a complete Qwen3-Omni as a trainer sends them.
std::pair<TensorSpec, Buffer> sent_of(WeightStore& store, const std::string& plain, const std::string& sent) {
  const TensorView view = store.get_any(plain).value();
  Buffer bytes(view.size_bytes());
  std::memcpy(bytes.data(), view.data, view.size_bytes());
  return {TensorSpec{sent, view.dtype, view.shape}, std::move(bytes)};
}

TEST(FrozenTensors, EachPartThatServesMustStay) {
  ThreadPool pool(2);
  WeightStore store = WeightStore::open(kSpeechFolder).value();
  const FrozenTensors all = FrozenTensors::read(store, kAllParts, pool).value();
  const FrozenTensors silent = FrozenTensors::read(store, {.vision = true, .audio = true}, pool).value();
  const std::pair<const char*, const char*> parts[] = {{"visual.merger.ln_q.weight", "vision tower"},
                                                       {"audio_tower.conv_out.weight", "audio tower"},
                                                       {"talker.model.norm.weight", "talker"},
                                                       {"code2wav.pre_transformer.norm.weight", "vocoder"},
                                                       {"model.embed_tokens.weight", "reads it too"}};
  for (const auto& [name, why] : parts) {
    ASSERT_TRUE(all.has(name)) << name;
    auto [spec, bytes] = sent_of(store, name, name);
    EXPECT_TRUE(all.compare(name, {bytes.data(), bytes.size_bytes()}, pool).ok()) << name;
    bytes.data()[0] ^= std::byte{1};
    const Status status = all.compare(name, {bytes.data(), bytes.size_bytes()}, pool);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
  EXPECT_FALSE(all.has("model.layers.0.input_layernorm.weight"));
  EXPECT_FALSE(silent.has("talker.model.norm.weight") || silent.has("model.embed_tokens.weight"));
  FrozenTensors merged = FrozenTensors::read(store, {.vision = true}, pool).value();
  merged.merge(FrozenTensors::read(store, {.audio = true, .speech = true}, pool).value());
  WeightStore same = WeightStore::open(kSpeechFolder).value();
  EXPECT_TRUE(merged.compare(same, pool).ok());
  // The language model's tensors are as before to the next load.
  EXPECT_TRUE(same.get_any("model.embed_tokens.weight").ok());
}

TEST(LiveWeights, TheEmbeddingStaysWhereATalkerReadsIt) {
  ThreadPool pool(2);
  const LoadOptions options{.pool = &pool, .isa = kernels::resolve_isa().value()};
  WeightStore store = WeightStore::open(kSpeechFolder).value();
  const auto frozen = std::make_shared<FrozenTensors>(FrozenTensors::read(store, kAllParts, pool).value());
  const std::shared_ptr<const Model> model =
      load_model(open_model_dir(kSpeechFolder).value().config,
                 std::make_shared<WeightStore>(WeightStore::open(kSpeechFolder).value()), 1, options)
          .value();
  LiveWeights live(model, options, frozen);
  auto [table, bytes] = sent_of(store, "model.embed_tokens.weight", "thinker.model.embed_tokens.weight");
  ASSERT_TRUE(live.check({table}).ok());
  EXPECT_TRUE(live.add(table, bytes).ok());
  bytes.data()[0] ^= std::byte{1};
  EXPECT_EQ(live.add(table, bytes).code(), StatusCode::kInvalidArgument);
  // All but the embedding is all that can be sent.
  std::vector<TensorSpec> sent;
  for (const auto& [name, entry] : model->weights().entries()) {
    if (name != "model.embed_tokens.weight") sent.push_back({"thinker." + name, DType::kBF16, entry.weight.view.shape});
  }
  EXPECT_TRUE(live.covers_all(sent));
  sent.pop_back();
  EXPECT_FALSE(live.covers_all(sent));
}

}  // namespace
}  // namespace millrace
