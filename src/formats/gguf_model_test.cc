// Models in GGUF against Hugging Face folders of the same models, both made by tests/oracles/formats_gguf.py: configs,
// names, extents, the order of rows, stacked experts, shards; and files that cannot be served.
#include "formats/gguf_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "formats/gguf_vision.h"
#include "formats/gguf_writer.h"
#include "formats/processor_config.h"
#include "formats/testing/test_files.h"
#include "formats/weights.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test_files::expect_message;
using test_files::TempDir;

const std::string kGolden = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/formats/gguf/";

void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.model_type, b.model_type);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.intermediate_size, b.intermediate_size);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.rope.type, b.rope.type);
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  EXPECT_EQ(a.rope.factor, b.rope.factor);
  EXPECT_EQ(a.rope.low_freq_factor, b.rope.low_freq_factor);
  EXPECT_EQ(a.rope.high_freq_factor, b.rope.high_freq_factor);
  EXPECT_EQ(a.rope.original_max_position_embeddings, b.rope.original_max_position_embeddings);
  EXPECT_EQ(a.rope.attention_factor, b.rope.attention_factor);
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.o_proj_bias, b.o_proj_bias);
  EXPECT_EQ(a.mlp_bias, b.mlp_bias);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.layer_window, b.layer_window);
  EXPECT_EQ(a.num_experts, b.num_experts);
  EXPECT_EQ(a.experts_per_token, b.experts_per_token);
  EXPECT_EQ(a.moe_intermediate_size, b.moe_intermediate_size);
  EXPECT_EQ(a.norm_topk_prob, b.norm_topk_prob);
  for (int i = 0; i < a.layers; ++i) EXPECT_EQ(a.has_experts(i), b.has_experts(i));
  EXPECT_EQ(a.bos_token_id, b.bos_token_id);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
}

void expect_same_weights(WeightStore& gguf, WeightStore& folder) {
  EXPECT_EQ(gguf.names(), folder.names());
  for (const std::string& name : folder.names()) {
    SCOPED_TRACE(name);
    const auto wanted = folder.get_any(name);
    ASSERT_TRUE(wanted.ok());
    for (int again = 0; again < 2; ++again) {  // the second time after what was copied has gone
      const auto seen = gguf.get(name, wanted->shape);
      ASSERT_TRUE(seen.ok()) << seen.status().to_string();
      EXPECT_EQ(seen->dtype, wanted->dtype);
      EXPECT_EQ(std::memcmp(seen->data, wanted->data, wanted->size_bytes()), 0);
      gguf.release(name);
    }
  }
}

struct Case {
  std::string gguf, folder;
};

class GgufModelTest : public testing::TestWithParam<Case> {};

TEST_P(GgufModelTest, IsTheFolder) {
  const std::string path = kGolden + GetParam().gguf, folder = kGolden + GetParam().folder;
  const auto dir = open_model_dir(path), wanted = open_model_dir(folder);
  ASSERT_TRUE(dir.ok()) << dir.status().to_string();
  ASSERT_TRUE(wanted.ok()) << wanted.status().to_string();
  EXPECT_EQ(dir->gguf, path);
  EXPECT_TRUE(wanted->gguf.empty());
  expect_same_config(dir->config, wanted->config);
  for (const MapMode mode : {MapMode::kMap, MapMode::kCopy}) {
    auto store = WeightStore::open(path, mode), hf = WeightStore::open(folder);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    ASSERT_TRUE(hf.ok());
    EXPECT_TRUE(store->check_finite().ok());
    expect_same_weights(*store, *hf);
    EXPECT_TRUE(store->load_with_progress({}).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufModelTest,
                         testing::Values(Case{"llama.gguf", "llama"}, Case{"llama-00002-of-00003.gguf", "llama"},
                                         Case{"llama_bias.gguf", "llama_bias"}, Case{"qwen2.gguf", "qwen2"},
                                         Case{"qwen3.gguf", "qwen3"}, Case{"qwen3moe.gguf", "qwen3moe"},
                                         Case{"qwen3vl.gguf", "qwen3vl"}, Case{"qwen3vlmoe.gguf", "qwen3vlmoe"}),
                         [](const auto& info) { return "n" + std::to_string(info.index); });

// What this build writes is read back as the config that it began with.
TEST(GgufConfig, IsWrittenAsItIsRead) {
  for (const char* name : {"llama", "llama_bias", "qwen2", "qwen3", "qwen3moe"}) {
    SCOPED_TRACE(name);
    const auto dir = open_model_dir(kGolden + name);
    ASSERT_TRUE(dir.ok());
    TempDir temp;
    GgufWriter writer;
    writer.add_string("general.architecture", gguf_architecture(dir->config.architecture));
    ASSERT_TRUE(write_gguf_config(dir->config, dir->generation, writer).ok());
    writer.add_u32("tokenizer.ggml.bos_token_id", 1);
    writer.add_u32("tokenizer.ggml.eos_token_id", 2);
    const auto model = GgufModel::open(kGolden + std::string(name) + ".gguf");
    ASSERT_TRUE(model.ok());
    for (const GgufTensor& tensor : model->header().tensors) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    ASSERT_TRUE(writer.begin(temp.file("m.gguf")).ok());
    for (const GgufTensor& tensor : model->header().tensors)
      ASSERT_TRUE(writer.write(model->bytes_of(tensor.name)).ok());
    ASSERT_TRUE(writer.finish().ok());
    const auto again = open_model_dir(temp.path());  // a folder with one GGUF file
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    expect_same_config(again->config, dir->config);
  }
}

TEST(GgufConfig, WhatAFileCannotHoldIsNotWritten) {
  auto dir = open_model_dir(kGolden + "qwen3moe");
  ASSERT_TRUE(dir.ok());
  const auto refused = [&](const ModelConfig& config, const std::string& part) {
    GgufWriter writer;
    const Status status = write_gguf_config(config, {}, writer);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    expect_message(status.message(), {part, "wanted what a GGUF file can hold"});
  };
  ModelConfig config = dir->config;
  config.norm_topk_prob = false;
  refused(config, "norm_topk_prob is false");
  config = dir->config;
  config.mlp_only_layers = {1};
  refused(config, "layer 1 has no experts");
  config = dir->config;
  config.layer_window[0] = 8;
  refused(config, "a window of 8 positions");
  config = dir->config;
  config.mean_pooling = true;
  refused(config, "mean pooling");
  config = dir->config;
  config.score_head = true;
  refused(config, "a head of labels");
  dir = open_model_dir(kGolden + "llama");
  ASSERT_TRUE(dir.ok());
  config = dir->config;
  config.rope.low_freq_factor = 1.5;
  refused(config, "llama3 rope scaling");
}

// The qwen3 file with one key more or another value.
class Edited {
 public:
  explicit Edited(const std::string& base = "qwen3.gguf") : model_(GgufModel::open(kGolden + base)) {
    EXPECT_TRUE(model_.ok());
    for (const GgufTensor& tensor : model_->header().tensors) tensors_.push_back(tensor);
  }
  Edited& skip_key(std::string key) { return skipped_.push_back(std::move(key)), *this; }
  Edited& skip_tensor(std::string_view name) {
    std::erase_if(tensors_, [&](const GgufTensor& tensor) { return tensor.name == name; });
    return *this;
  }
  GgufWriter writer;

  std::string write(const TempDir& dir) {
    for (const auto& [key, value] : model_->header().metadata) {
      const bool skipped = std::find(skipped_.begin(), skipped_.end(), key) != skipped_.end();
      if (!skipped && !writer.has(key)) writer.add_value(key, value);
    }
    for (const GgufTensor& tensor : tensors_) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    EXPECT_TRUE(writer.begin(dir.file("e.gguf")).ok());
    for (const GgufTensor& tensor : tensors_) EXPECT_TRUE(writer.write(model_->bytes_of(tensor.name)).ok());
    EXPECT_TRUE(writer.finish().ok());
    return dir.file("e.gguf");
  }

 private:
  Result<GgufModel> model_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::string> skipped_;
};

void expect_refused(Edited& edited, StatusCode code, const std::vector<std::string>& parts) {
  TempDir dir;
  const std::string path = edited.write(dir);
  const auto opened = open_model_dir(path);
  ASSERT_FALSE(opened.ok()) << parts[0];
  EXPECT_EQ(opened.status().code(), code) << opened.status().to_string();
  expect_message(opened.status().message(), {path, "wanted"});
  expect_message(opened.status().message(), parts);
}

TEST(GgufConfig, WhatIsNotSupportedIsRefusedByName) {
  const auto no = StatusCode::kUnsupported, bad = StatusCode::kInvalidArgument;
  const auto with_string = [&](const char* key, const char* text, StatusCode code,
                               const std::vector<std::string>& parts) {
    Edited edited;
    edited.writer.add_string(key, text);
    expect_refused(edited, code, parts);
  };
  const auto with_u32 = [&](const char* key, uint32_t value, StatusCode code, const std::vector<std::string>& parts) {
    Edited edited;
    edited.writer.add_u32(key, value);
    expect_refused(edited, code, parts);
  };
  const auto with_f32 = [&](const char* key, float value, StatusCode code, const std::vector<std::string>& parts) {
    Edited edited;
    edited.writer.add_f32(key, value);
    expect_refused(edited, code, parts);
  };
  with_string("general.architecture", "gemma3", no, {"\"gemma3\"; wanted one of llama, qwen2, qwen3, qwen3moe"});
  with_u32("qwen3.n_deepstack_layers", 3, no,
           {"has the key \"qwen3.n_deepstack_layers\""});  // not of this architecture
  with_string("general.type", "adapter", no, {"general.type is \"adapter\""});
  with_string("qwen3.rope.scaling.type", "yarn", no, {"qwen3.rope.scaling.type is \"yarn\""});
  with_string("qwen3.unheard_of", "x", no, {"the key \"qwen3.unheard_of\""});
  with_u32("qwen3.attention.sliding_window", 512, no, {"qwen3.attention.sliding_window is 512; wanted 0"});
  with_u32("qwen3.expert_count", 4, no, {"qwen3.expert_count is 4", "only qwen3moe"});
  with_f32("qwen3.final_logit_softcapping", 30, no, {"qwen3.final_logit_softcapping is 30"});
  with_u32("qwen3.rope.dimension_count", 8, no, {"qwen3.rope.dimension_count is 8; wanted 16"});
  with_u32("qwen3.attention.value_length", 8, no, {"qwen3.attention.value_length is 8; wanted 16"});
  with_u32("qwen3.vocab_size", 41, bad, {"qwen3.vocab_size is 41; wanted 40"});
  with_u32("qwen3.block_count", 0, bad, {"qwen3.block_count is 0"});
  with_u32("qwen3.block_count", 100000, bad, {"qwen3.block_count is 100000"});
  with_u32("qwen3.attention.head_count_kv", 3, bad, {"num_key_value_heads is 3"});
  with_string("qwen3.context_length", "long", bad, {"qwen3.context_length is of type string"});
  with_u32("tokenizer.ggml.eos_token_id", 40, bad, {"eos_token_id is 40"});
  with_f32("qwen3.rope.freq_base", std::numeric_limits<float>::quiet_NaN(), bad, {"qwen3.rope.freq_base is nan"});
  with_f32("general.sampling.top_p", 2, bad, {"top_p is 2"});
  with_f32("general.sampling.temp", 3, bad, {"temperature is 3; wanted", "2"});
  for (const char* key : {"qwen3.embedding_length", "qwen3.context_length", "general.architecture"}) {
    Edited edited;
    edited.skip_key(key);
    expect_refused(edited, bad, {std::string(key) + " is missing"});
  }
  Edited headless;
  headless.skip_tensor("token_embd.weight");
  expect_refused(headless, bad, {"token_embd.weight is missing"});
  Edited half("llama_bias.gguf");
  half.skip_tensor("blk.0.attn_k.bias");
  expect_refused(half, no, {"blk.0.attn_k.bias"});
}

// As llama.cpp reads them: a factor without a type is of linear scaling, and 0 is none.
TEST(GgufConfig, RopeScalingWithoutATypeIsLinear) {
  const auto rope_of = [](Edited& edited) {
    TempDir dir;
    const auto opened = open_model_dir(edited.write(dir));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return opened.ok() ? opened->config.rope : RopeConfig();
  };
  for (const char* key : {"qwen3.rope.scaling.factor", "qwen3.rope.scale_linear"}) {
    for (const float factor : {4.0f, 1.0f, 0.0f}) {
      Edited edited;
      edited.writer.add_f32(key, factor);
      const RopeConfig rope = rope_of(edited);
      EXPECT_EQ(rope.type, factor > 1 ? RopeType::kLinear : RopeType::kDefault) << key << factor;
      EXPECT_EQ(rope.factor, factor > 1 ? factor : 1) << key << factor;
    }
  }
  Edited none;
  none.writer.add_string("qwen3.rope.scaling.type", "none");
  none.writer.add_f32("qwen3.rope.scaling.factor", 4);
  EXPECT_EQ(rope_of(none).type, RopeType::kDefault);
  Edited bad;
  bad.writer.add_f32("qwen3.rope.scaling.factor", -2);
  expect_refused(bad, StatusCode::kInvalidArgument, {"factor is -2"});
}

// A shape makes no more tensors than the bytes of the file are worth.
TEST(GgufModel, OnlyStackedExpertsAreTakenApart) {
  const auto base = GgufModel::open(kGolden + "qwen3moe.gguf");
  ASSERT_TRUE(base.ok());
  const auto stored = WeightStore::open(kGolden + "qwen3moe.gguf");
  ASSERT_TRUE(stored.ok());
  const auto open_with = [&](const std::vector<std::pair<std::string, Shape>>& more) {
    TempDir dir;
    GgufWriter writer;
    for (const auto& [key, value] : base->header().metadata) writer.add_value(key, value);
    // The writer steps over one without bytes where another follows.
    for (const auto& [name, shape] : more) writer.add_tensor(name, DType::kF32, shape);
    for (const GgufTensor& tensor : base->header().tensors) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
    EXPECT_TRUE(writer.begin(dir.file("m.gguf")).ok());
    for (const auto& [name, shape] : more) {
      EXPECT_TRUE(writer.write(std::vector<std::byte>(static_cast<std::size_t>(shape.elements()) * 4)).ok());
    }
    for (const GgufTensor& tensor : base->header().tensors) EXPECT_TRUE(writer.write(base->bytes_of(tensor.name)).ok());
    EXPECT_TRUE(writer.finish().ok());
    return WeightStore::open(dir.file("m.gguf"));
  };
  const auto odd = open_with({{"x{}.weight", {1024, 0, 0}}, {"blk.0.ffn_gate_exps.{}", {1024, 0, 0}}});
  ASSERT_TRUE(odd.ok()) << odd.status().to_string();
  EXPECT_EQ(odd->names().size(), stored->names().size() + 2);
  for (const Shape& shape : {Shape{1024, 1, 1}, Shape{4, 0, 8}, Shape{4, 8}}) {
    const auto other = open_with({{"blk.9.ffn_gate_exps.weight", shape}});
    EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
    expect_message(other.status().message(), {"blk.9.ffn_gate_exps.weight", "4 experts first"});
  }
}

TEST(GgufModel, ShardsMustBelongTogether) {
  TempDir dir;
  const auto shard = [](int i) { return fmt::format("llama-0000{}-of-00003.gguf", i); };
  for (int i : {1, 2}) fs::copy_file(kGolden + shard(i), dir.file(shard(i)));
  const auto open = [&] { return GgufModel::open(dir.file(shard(1))).status(); };
  EXPECT_EQ(open().code(), StatusCode::kNotFound);
  expect_message(open().message(), {"shard 3 of 3 is missing", shard(3)});
  fs::copy_file(kGolden + shard(2), dir.file(shard(3)));
  expect_message(open().message(), {shard(3), "split.no is 1 and split.count 3; wanted 2 and 3"});
  fs::copy_file(kGolden + shard(3), dir.file(shard(3)), fs::copy_options::overwrite_existing);
  EXPECT_TRUE(open().ok());
  EXPECT_EQ(WeightStore::open(dir.path())->shard_count(), 3u);
  fs::rename(dir.file(shard(1)), dir.file("first.gguf"));
  expect_message(GgufModel::open(dir.file("first.gguf")).status().message(), {"is one of 3 shards"});
}

TEST(GgufModel, FoldersReportWhichFileIsMeant) {
  TempDir dir;
  EXPECT_EQ(find_gguf(dir.path()).value(), std::nullopt);
  fs::copy_file(kGolden + "qwen3.gguf", dir.file("a.gguf"));
  EXPECT_EQ(find_gguf(dir.path()).value(), dir.file("a.gguf"));
  fs::copy_file(kGolden + "qwen3.gguf", dir.file("b.gguf"));
  expect_message(open_model_dir(dir.path()).status().message(), {"holds 2 GGUF models", "\"a.gguf\"", "\"b.gguf\""});
  dir.write("model.safetensors", "");
  EXPECT_EQ(find_gguf(dir.path()).value(), std::nullopt);
  EXPECT_EQ(open_model_dir(dir.file("gone.gguf")).status().code(), StatusCode::kNotFound);
  expect_message(open_model_dir(dir.write("x.gguf", "text")).status().message(), {"not a GGUF file", "\"text\""});
}

// Blocks whose scale is not finite, and rows that move as whole blocks.
TEST(GgufModel, QuantizedWeights) {
  const auto model = GgufModel::open(kGolden + "llama_bias.gguf");
  ASSERT_TRUE(model.ok());
  TempDir dir;
  const auto write = [&](uint16_t scale) {
    GgufWriter writer;
    for (const auto& [key, value] : model->header().metadata) writer.add_value(key, value);
    const std::string quantized = "blk.1.attn_q.weight";
    for (const GgufTensor& tensor : model->header().tensors) {
      writer.add_tensor(tensor.name, tensor.name == quantized ? DType::kQ8_0 : tensor.dtype, tensor.shape);
    }
    EXPECT_TRUE(writer.begin(dir.file("q.gguf"), GgufWriter::Existing::kReplace).ok());
    for (const GgufTensor& tensor : model->header().tensors) {
      std::vector<std::byte> blocks(32 * 34);
      for (std::size_t row = 0; row < 32; ++row) {
        const uint16_t row_scale = row == 5 ? scale : 0x3C00;
        std::memcpy(blocks.data() + row * 34, &row_scale, 2);
        std::memset(blocks.data() + row * 34 + 2, static_cast<int>(row), 32);
      }
      EXPECT_TRUE(writer.write(tensor.name == quantized ? blocks : model->bytes_of(tensor.name)).ok());
    }
    EXPECT_TRUE(writer.finish().ok());
  };
  write(0x3C00);
  auto store = WeightStore::open(dir.file("q.gguf"));
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_TRUE(store->check_finite().ok());
  const auto view = store->get("model.layers.1.self_attn.q_proj.weight", {32, 32});
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->dtype, DType::kQ8_0);
  // Heads of 8 rows: the file has rows 0 4 1 5 2 6 3 7 of each.
  const int file_rows[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  for (int row = 0; row < 32; ++row) {
    EXPECT_EQ(static_cast<const uint8_t*>(view->data)[row * 34 + 2], row / 8 * 8 + file_rows[row % 8]) << row;
  }
  write(0x7C00);
  store = WeightStore::open(dir.file("q.gguf"));
  ASSERT_TRUE(store.ok());
  expect_message(store->check_finite().message(),
                 {"element 160 of tensor \"model.layers.1.self_attn.q_proj.weight\" (Q8_0 [32, 32])"});
}

TEST(GgufNames, GoBothWays) {
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
                           "model.layers.0.self_attn.q_proj.bias", "model.layers.1023.mlp.experts.{}.down_proj.weight",
                           "model.layers.7.mlp.gate.weight", "model.layers.7.mlp.gate_proj.weight"}) {
    EXPECT_NE(gguf_tensor_name(name), name);
    EXPECT_EQ(hf_tensor_name(gguf_tensor_name(name)), name);
  }
  for (const char* name : {"", ".", "blk.", "blk..attn_q.weight", "blk.x.attn_q.weight", "blk.0.other.weight",
                           "blk.99999.attn_q.weight", "output", "rope_freqs.weight"}) {
    EXPECT_EQ(hf_tensor_name(name), name);
  }
}

// Both files of llama.cpp's converter together are the folder that they were made from (tests/oracles/vision_gguf.py).
TEST(GgufVision, IsTheFolder) {
  const std::string vision = MILLRACE_SOURCE_DIR "/tests/golden/vision/";
  const auto dir = open_model_dir(vision + "gguf"), wanted = open_model_dir(vision + "dense");
  ASSERT_TRUE(dir.ok()) << dir.status().to_string();
  ASSERT_TRUE(wanted.ok());
  ASSERT_TRUE(dir->config.vision.has_value());
  VisionConfig tower = *dir->config.vision;
  EXPECT_TRUE(tower.kernels_by_frame);
  tower.kernels_by_frame = false;
  EXPECT_TRUE(tower == *wanted->config.vision);
  EXPECT_EQ(dir->config.rope.mrope_section, wanted->config.rope.mrope_section);
  EXPECT_EQ(dir->config.architecture, wanted->config.architecture);
  auto store = WeightStore::open(vision + "gguf"), folder = WeightStore::open(vision + "dense");
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  ASSERT_TRUE(folder.ok());
  std::size_t compared = 0;
  for (const std::string& name : folder->names()) {
    if (name == "visual.patch_embed.proj.weight") continue;
    SCOPED_TRACE(name);
    const auto theirs = folder->get_any(name), ours = store->get_any(name);
    ASSERT_TRUE(ours.ok()) << ours.status().to_string();
    EXPECT_TRUE(ours->shape == theirs->shape);
    if (ours->dtype != theirs->dtype) continue;  // what the converter keeps in f32
    EXPECT_EQ(std::memcmp(ours->data, theirs->data, ours->size_bytes()), 0);
    ++compared;
  }
  EXPECT_GT(compared, 40u);
  EXPECT_EQ(store->names().size(), folder->names().size() + 1) << "two kernels of patches";
  const auto pixels = read_processor_config(vision + "gguf");
  ASSERT_TRUE(pixels.ok()) << pixels.status().to_string();
  EXPECT_EQ(pixels->image.min_pixels, 64 * 16 * 16);
  EXPECT_EQ(pixels->image.mean, (std::array<double, 3>{0.5, 0.5, 0.5}));
  // The second number fits no int64.
  const std::array<uint64_t, 3> huge = {1, uint64_t{1} << 63, 1};
  Edited edited("../../vision/gguf/mmproj.gguf");
  edited.writer.add_value("clip.vision.image_mean", {.type = GgufType::kU64,
                                                     .is_array = true,
                                                     .count = huge.size(),
                                                     .bytes = std::as_bytes(std::span(huge)),
                                                     .strings = {}});
  TempDir temp;
  const auto bad = GgufModel::open(edited.write(temp));
  ASSERT_TRUE(bad.ok()) << bad.status().to_string();
  EXPECT_EQ(tower_pixels(*bad).status().message(), "clip.vision.image_mean is array of 3 u64; wanted 3 numbers");
}

}  // namespace
}  // namespace millrace
