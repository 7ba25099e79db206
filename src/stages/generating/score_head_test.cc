// The head of a classifier stays what it was at the start: no update may leave another one behind the new weights.
#include "stages/generating/score_head.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/safetensors_file.h"
#include "formats/tensor_names.h"
#include "formats/testing/test_files.h"
#include "stages/generating/loading.h"
#include "stages/generating/weight_snapshot.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test_files::TempDir;

const std::string kBase = MILLRACE_SOURCE_DIR "/tests/golden/models/tiny_qwen3";
constexpr int64_t kWidth = 40;

std::vector<std::byte> head_bytes(float first) {
  std::vector<float> values(kWidth, 0.5f);
  values[0] = first;
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// A Qwen3ForSequenceClassification of one label; nullopt: its head is missing.
std::string write_classifier(const TempDir& root, const std::string& name, std::optional<float> first) {
  const std::string folder = root.file(name);
  fs::create_directory(folder);
  Json config = parse_json(test_files::read_file(kBase + "/config.json")).value();
  config["architectures"] = {"Qwen3ForSequenceClassification"};
  root.write(name + "/config.json", config.dump());
  WeightStore store = WeightStore::open(kBase).value();
  std::vector<SafetensorsEntry> entries;
  for (const std::string& tensor : store.names()) entries.push_back(*store.find(tensor));
  if (first) entries.push_back({.name = std::string(kScoreHeadName), .dtype = DType::kF32, .shape = {1, kWidth}});
  SafetensorsFile file = SafetensorsFile::create(folder + "/model.safetensors", entries).value();
  for (const std::string& tensor : store.names()) {
    const TensorView view = store.get_any(tensor).value();
    EXPECT_TRUE(file.write({static_cast<const std::byte*>(view.data), view.size_bytes()}).ok());
  }
  const std::vector<std::byte> head = first ? head_bytes(*first) : std::vector<std::byte>();
  EXPECT_TRUE(file.write(head).ok());
  EXPECT_TRUE(file.finish().ok());
  return folder;
}

class ScoreHeadTest : public testing::Test {
 protected:
  void SetUp() override {
    options_ = {.model = write_classifier(root_, "serving", 1), .threads = 1};
    options_.weights_root = root_.path();
    options_.weights_snapshot_dir = root_.file("snapshots");
    fs::create_directory(options_.weights_snapshot_dir);
    config_ = open_model_dir(options_.model).value().config;
    ASSERT_TRUE(config_.score_head);
    ASSERT_TRUE(read_frozen_tensors(options_, {.score = true}, *frozen_).ok());
  }
  Status update(const std::string& folder) const {
    return make_weights_of(options_, config_, {}, frozen_)(folder, 2).status();
  }

  TempDir root_;
  ModelOptions options_;
  ModelConfig config_;
  const std::shared_ptr<FrozenTensors> frozen_ = std::make_shared<FrozenTensors>();
};

TEST_F(ScoreHeadTest, AFolderHasTheSameHead) {
  const Status same = update(write_classifier(root_, "same", 1));
  EXPECT_TRUE(same.ok()) << same.to_string();
  const Status other = update(write_classifier(root_, "other", 2));
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  test_files::expect_message(other.message(), {"score.weight", "head of labels", "wanted"});
  const Status missing = update(write_classifier(root_, "missing", std::nullopt));
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  test_files::expect_message(missing.message(), {root_.file("missing"), "score.weight", "wanted"});
}

TEST_F(ScoreHeadTest, ASnapshotOfTheServingModelHasNone) {
  const auto model = load_weights(options_, [](const std::string&, double) {});
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const std::atomic<bool> stop{false};
  const Result<std::string> path = write_snapshot(**model, options_, "step", stop);
  ASSERT_TRUE(path.ok()) << path.status().to_string();
  const Status status = update(*path);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(ScoreHeadTest, ATrainerSendsTheSameHead) {
  const auto model = load_weights(options_, [](const std::string&, double) {});
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const TensorSpec head{std::string(kScoreHeadName), DType::kF32, {1, kWidth}};
  const auto live = make_live_weights_of(options_, frozen_)(*model, {head});
  ASSERT_TRUE(live.ok()) << live.status().to_string();
  for (const float first : {1.0f, 2.0f}) {
    const std::vector<std::byte> bytes = head_bytes(first);
    Buffer sent(bytes.size());
    std::memcpy(sent.data(), bytes.data(), bytes.size());
    const Status status = (*live)->add(head, sent);
    EXPECT_EQ(status.ok(), first == 1.0f) << status.to_string();
    if (!status.ok()) test_files::expect_message(status.message(), {"score.weight", "head of labels"});
  }
}

}  // namespace
}  // namespace millrace
