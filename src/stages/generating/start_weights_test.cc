// A server starts with the newest snapshot that is complete and of its model.
#include "stages/generating/start_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "formats/snapshot_manifest.h"
#include "formats/testing/test_files.h"
#include "stages/generating/loading.h"
#include "stages/generating/tensors_hash.h"
#include "stages/generating/weight_snapshot.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test_files::TempDir;

std::string golden(const std::string& name) { return MILLRACE_SOURCE_DIR "/tests/golden/models/" + name; }

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class StartWeightsTest : public ::testing::Test {
 protected:
  StartWeightsTest() { log_init("test", LogLevel::kOff); }

  ModelOptions options_of(const std::string& model) const {
    ModelOptions options{.model = golden(model), .threads = 1};
    options.weights_snapshot_dir = dir_.path();
    return options;
  }
  // With the model's own weights, under the name of this version. None is removed.
  std::string write(ModelOptions options, uint64_t version) {
    const TempDir scratch;
    options.weights_snapshot_dir = scratch.path();
    const auto model = load_weights(options, [](const std::string&, double) {}).value();
    LiveWeights weights(model, {.isa = kernels::resolve_isa().value()});
    const auto path = write_snapshot(*weights.make(version).value(), options, "step-" + std::to_string(version), stop_);
    EXPECT_TRUE(path.ok()) << path.status().to_string();
    const std::string named = dir_.file("weights-2020010" + std::to_string(version) + "T000000Z-00000" +
                                        std::to_string(version));  // however fast they follow each other
    fs::rename(*path, named);
    return fs::canonical(named);
  }
  static std::optional<StartWeights> found(const ModelOptions& options) {
    const auto start = find_start_weights(options);
    EXPECT_TRUE(start.ok()) << start.status().to_string();
    return start.ok() ? *start : std::nullopt;
  }
  static std::string refusal(const ModelOptions& options) {
    const auto start = find_start_weights(options);
    EXPECT_EQ(start.status().code(), StatusCode::kInvalidArgument) << start.status().to_string();
    return start.status().message();
  }

  TempDir dir_;
  std::atomic<bool> stop_{false};
};

TEST_F(StartWeightsTest, TheNewestIsChosen) {
  ModelOptions options = options_of("tiny_qwen3");
  EXPECT_FALSE(found(options));
  write(options, 4);
  const std::string newest = write(options, 5);
  const auto start = found(options);
  ASSERT_TRUE(start);
  EXPECT_EQ(start->path, newest);
  EXPECT_TRUE(start->version == 5 && start->label == "step-5");
  options.start_weights = newest;
  const auto model = load_weights(options, [](const std::string&, double) {}).value();
  EXPECT_TRUE(model->weight_version() == 5 && model->weights_checksum() == start->checksum);
  options.start_weights = kStartModel;
  EXPECT_FALSE(found(options));
}

TEST_F(StartWeightsTest, OneOfNoUseIsSkipped) {
  const ModelOptions options = options_of("tiny_qwen3");
  const std::string good = write(options, 3);
  const std::string flipped = write(options, 4);
  std::string bytes = test_files::read_file(flipped + "/model.safetensors");
  bytes[bytes.size() - 5] ^= 1;
  write_file(flipped + "/model.safetensors", bytes);
  const std::string cut = write(options, 5);
  fs::resize_file(cut + "/model.safetensors", fs::file_size(cut + "/model.safetensors") - 8);
  fs::remove(write(options, 6) + "/model.safetensors");
  fs::remove(write(options, 7) + "/" + kSnapshotManifestName);
  write_file(write(options, 8) + "/" + kSnapshotManifestName, "{");
  fs::create_directory(dir_.file(".weights-20990101T000000Z-000009.part"));
  ASSERT_TRUE(found(options));
  EXPECT_EQ(found(options)->path, good);
  fs::remove_all(good);
  EXPECT_FALSE(found(options));  // the model's own
}

TEST_F(StartWeightsTest, OneOfAnotherModelIsRefused) {
  const ModelOptions options = options_of("tiny_qwen3");
  const std::string path = write(options, 2);
  const ModelOptions other = options_of("tiny_qwen2");
  const std::string message = refusal(other);
  for (const std::string& part : {path, golden("tiny_qwen3"), other.model, std::string("--start-weights model")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << ": " << message;
  }
}

TEST_F(StartWeightsTest, OneOfTheModelWithAnotherConfigurationIsRefused) {
  const TempDir changed;
  for (const auto& entry : fs::directory_iterator(golden("tiny_qwen3"))) fs::copy(entry.path(), changed.path());
  ModelOptions options = options_of("tiny_qwen3");
  write(options, 2);
  std::string config = test_files::read_file(changed.file("config.json"));
  const std::string key = "\"rms_norm_eps\": ";
  const std::size_t at = config.find(key);
  ASSERT_NE(at, std::string::npos);
  config.replace(at, config.find_first_of(",\n", at) - at, key + "0.5");
  changed.write("config.json", config);
  options.model = changed.path();
  EXPECT_NE(refusal(options).find("rms_norm_eps"), std::string::npos);
}

TEST_F(StartWeightsTest, ASnapshotMayBeNamed) {
  ModelOptions options = options_of("tiny_qwen3");
  const std::string older = write(options, 4), newest = write(options, 5);
  options.start_weights = older;
  EXPECT_EQ(found(options)->path, older);
  options.start_weights = dir_.path() + "/nothing/../" + fs::path(older).filename().string();
  EXPECT_EQ(found(options)->path, older);
  fs::remove(newest + "/model.safetensors");
  options.start_weights = newest;
  EXPECT_NE(refusal(options).find("--start-weights: " + newest), std::string::npos);
  options.start_weights = golden("tiny_qwen3");
  EXPECT_NE(refusal(options).find("wanted newest, model, or a folder in"), std::string::npos);
  options.weights_snapshot_dir.clear();
  EXPECT_NE(refusal(options).find("--weights-snapshot-dir is not set"), std::string::npos);
}

// Snapshots of a server that was started with a snapshot as its model are of the model that was trained.
TEST_F(StartWeightsTest, AModelThatIsASnapshotIsTakenAsItIs) {
  ModelOptions options = options_of("tiny_qwen3");
  const std::string first = write(options, 2);
  ModelOptions of_snapshot = options;
  of_snapshot.model = first;
  EXPECT_FALSE(found(of_snapshot));
  const std::string second = write(of_snapshot, 3);
  EXPECT_EQ(found(options)->path, second);
  EXPECT_FALSE(found(of_snapshot));
}

}  // namespace
}  // namespace millrace
