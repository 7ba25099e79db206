// A snapshot is loaded as the weights that it was written from.
#include "stages/generating/weight_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/safetensors_file.h"
#include "formats/snapshot_manifest.h"
#include "formats/testing/test_files.h"
#include "stages/generating/loading.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test_files::TempDir;

constexpr const char* kNorm = "model.norm.weight";

std::string golden(const std::string& name) { return MILLRACE_SOURCE_DIR "/tests/golden/models/" + name; }

std::shared_ptr<const Model> load(const ModelOptions& options) {
  Result<std::shared_ptr<const Model>> model = load_weights(options, [](const std::string&, double) {});
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return model.ok() ? *model : nullptr;
}

// The model with other bytes in one tensor, as a trainer would send it.
std::shared_ptr<const Model> trained(const ModelOptions& options, uint64_t version) {
  const std::shared_ptr<const Model> serving = load(options);
  const WeightTable::Entry& norm = *serving->weights().find(kNorm);
  const TensorSpec tensor{kNorm, norm.source, norm.weight.view.shape};
  auto weights = make_live_weights_of(options, nullptr)(serving, {tensor});
  EXPECT_TRUE(weights.ok()) << weights.status().to_string();
  Buffer bytes(tensor.size_bytes());
  for (std::size_t i = 0; i < bytes.size_bytes(); ++i) bytes.data()[i] = static_cast<std::byte>(i % 7 + version);
  EXPECT_TRUE((*weights)->add(tensor, bytes).ok());
  return (*weights)->make(version).value();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class WeightSnapshotTest : public ::testing::Test {
 protected:
  ModelOptions options_of(const std::string& model) const {
    ModelOptions options{.model = model, .threads = 1};
    options.weights_snapshot_dir = dir_.path();
    return options;
  }
  Result<std::string> write(const Model& model, const ModelOptions& options) {
    return write_snapshot(model, options, "step", stop_);
  }

  TempDir dir_;
  std::atomic<bool> stop_{false};
};

TEST_F(WeightSnapshotTest, ASnapshotIsLoadedAsTheSameWeights) {
  for (const char* name : {"tiny_qwen3", "tiny_qwen3_moe", "tiny_llama_gqa2_tied", "tiny_qwen2", "tiny_mistral_full"}) {
    SCOPED_TRACE(name);
    const ModelOptions options = options_of(golden(name));
    const auto model = trained(options, 2);
    ASSERT_NE(model->weights_checksum(), load(options)->weights_checksum());
    const Result<std::string> path = write(*model, options);
    ASSERT_TRUE(path.ok()) << path.status().to_string();
    EXPECT_TRUE(fs::path(*path).is_absolute() && path->ends_with("-000002"));
    ModelOptions again = options;
    again.model = *path;
    EXPECT_EQ(load(again)->weights_checksum(), model->weights_checksum());
    again = options;
    again.start_weights = *path;
    EXPECT_EQ(load(again)->weights_checksum(), model->weights_checksum());
    EXPECT_EQ(load(again)->weight_version(), 2u);
    EXPECT_EQ(test_files::read_file(*path + "/config.json"), test_files::read_file(golden(name) + "/config.json"));
    // It may be updated to while requests run, without another root.
    const auto made = make_weights_of(options, model->config(), {}, nullptr)(*path, 3);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ((*made)->weights_checksum(), model->weights_checksum());
    fs::remove_all(*path);
  }
}

TEST_F(WeightSnapshotTest, FilesHaveTheNamesOfTheModelsFolder) {
  // The model in two files, with an index.
  const TempDir source;
  const auto complete = golden("tiny_qwen3");
  for (const auto& entry : fs::directory_iterator(complete)) fs::copy(entry.path(), source.path());
  const auto model = load(options_of(complete));
  fs::remove(source.file("model.safetensors"));
  std::map<std::string, std::vector<std::string>> parts;
  Json map = Json::object();
  for (const auto& [name, entry] : model->weights().entries()) {
    const std::string file =
        name.starts_with("model.layers.0.") ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
    parts[file].push_back(name);
    map[name] = file;
  }
  auto store = WeightStore::open(complete).value();
  for (const auto& [file, names] : parts) {
    std::vector<SafetensorsEntry> entries;
    for (const std::string& name : names) entries.push_back(*store.find(name));
    auto out = SafetensorsFile::create(source.file(file), entries).value();
    for (const std::string& name : names) {
      const TensorView view = store.get_any(name).value();
      ASSERT_TRUE(out.write({static_cast<const std::byte*>(view.data), view.size_bytes()}).ok());
    }
    ASSERT_TRUE(out.finish().ok());
  }
  source.write("model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  source.write("old.bin", "weights of another kind");
  source.write("notes.txt", "kept");

  const ModelOptions options = options_of(source.path());
  const auto changed = trained(options, 5);
  const Result<std::string> path = write(*changed, options);
  ASSERT_TRUE(path.ok()) << path.status().to_string();
  std::vector<std::string> wanted = names_in(source.path());
  std::erase(wanted, "old.bin");
  std::erase(wanted, "golden.safetensors");  // of other tests
  wanted.push_back(kSnapshotManifestName);
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(names_in(*path), wanted);
  ModelOptions again = options;
  again.model = *path;
  EXPECT_EQ(load(again)->weights_checksum(), changed->weights_checksum());
}

TEST_F(WeightSnapshotTest, ABoundedNumberIsKeptAndNothingElseRemoved) {
  const ModelOptions options = options_of(golden("tiny_qwen3"));
  const auto model = trained(options, 9);
  for (const char* name : {"weights-20200101T000000Z-000001", "weights-20990101T000000Z-000001", "weights-mine", "mine",
                           ".weights-20200101T000000Z-000004.part"}) {
    fs::create_directory(dir_.file(name));
  }
  const std::string path = write(*model, options).value();
  EXPECT_EQ(names_in(dir_.path()), (std::vector<std::string>{"mine", fs::path(path).filename().string(),
                                                             "weights-20990101T000000Z-000001", "weights-mine"}));
}

TEST_F(WeightSnapshotTest, WhatAReplicaStartsWithIsKept) {
  ModelOptions options = options_of(golden("tiny_qwen3"));
  const auto model = trained(options, 3);
  const std::string first = fs::path(write(*model, options).value()).filename().string();
  fs::rename(dir_.file(first), dir_.file("weights-20200101T000000Z-000003"));
  fs::create_directory(dir_.file("weights-20200101T000000Z-000004"));
  fs::create_directory(dir_.file("weights-20200101T000000Z-000005"));
  options.start_weights = dir_.file("weights-20200101T000000Z-000003");
  const std::string path = write(*trained(options, 6), options).value();
  EXPECT_EQ(names_in(dir_.path()),
            (std::vector<std::string>{"weights-20200101T000000Z-000003", "weights-20200101T000000Z-000005",
                                      fs::path(path).filename().string()}));
}

TEST_F(WeightSnapshotTest, OneThatIsGivenUpLeavesNothing) {
  const ModelOptions options = options_of(golden("tiny_qwen3"));
  const auto model = trained(options, 2);
  stop_ = true;
  EXPECT_EQ(write(*model, options).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(names_in(dir_.path()).empty());
}

TEST_F(WeightSnapshotTest, QuantizedWeightsAreRefusedWithTheTensorsName) {
  ModelOptions options = options_of(golden("tiny_qwen3"));
  options.quantize = "q8_0";
  const Result<std::string> path = write(*load(options), options);
  EXPECT_EQ(path.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(path.status().message().find("it serves as Q8_0 and came as"), std::string::npos)
      << path.status().message();
  EXPECT_TRUE(names_in(dir_.path()).empty());
}

TEST_F(WeightSnapshotTest, WhatCannotWorkIsRefusedAtTheStart) {
  ModelOptions options = options_of(golden("tiny_qwen3"));
  EXPECT_TRUE(check_snapshots(options).ok());
  options.quantize = "q8_0";
  EXPECT_EQ(check_snapshots(options).code(), StatusCode::kUnsupported);
  options.weights_snapshot_dir.clear();
  EXPECT_TRUE(check_snapshots(options).ok());
  options = options_of(golden("tiny_qwen3"));
  options.weights_snapshot_dir = dir_.file("none");
  EXPECT_EQ(check_snapshots(options).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
