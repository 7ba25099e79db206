// A split that ends early leaves nothing behind; one that ends has every tensor once.
#include "models/split_model.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "formats/shard_manifest.h"
#include "formats/weights.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(MILLRACE_SOURCE_DIR) + "/models/demo";
const std::vector<LayerRange> kRanges = {{0, 1}, {1, 4}, {4, 6}};

class SplitModelTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("split-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  Status split(const WriteProgress& progress) {
    return split_model(kModel, kRanges, 7, (folder_ / "out").string(), progress);
  }
  fs::path folder_;
};

TEST_F(SplitModelTest, EveryTensorIsInOneShardAndEachShardLoads) {
  uint64_t last = 0, all = 0;
  ASSERT_TRUE(split([&](uint64_t done, uint64_t total) {
                EXPECT_GE(done, last);
                last = done, all = total;
                return true;
              }).ok());
  EXPECT_EQ(last, all);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kRanges.size(); ++i) {
    const std::string shard = (folder_ / "out" / std::to_string(i)).string();
    const ShardManifest manifest = read_shard_manifest(shard).value().value();
    EXPECT_EQ(manifest.tensors_hash, 7u);
    EXPECT_EQ((LayerRange{manifest.begin, manifest.end}), kRanges[i]);
    EXPECT_TRUE(check_shard_files(shard, manifest, {}).ok());
    auto store = std::make_shared<WeightStore>(WeightStore::open(shard).value());
    for (const std::string& name : store->names()) names.push_back(name);
    const auto model = load_model(open_model_dir(shard).value().config, store, kRanges[i], 1);
    EXPECT_TRUE(model.ok()) << model.status().message();
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, WeightStore::open(kModel).value().names());
}

TEST_F(SplitModelTest, OneThatIsStoppedLeavesNothing) {
  const Status status = split([](uint64_t done, uint64_t total) { return done < total / 2; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SplitModelTest, NothingIsOverwritten) {
  fs::create_directory(folder_ / "out");
  EXPECT_EQ(split([](uint64_t, uint64_t) { return true; }).code(), StatusCode::kConflict);
  EXPECT_TRUE(fs::is_empty(folder_ / "out"));
}

}  // namespace
}  // namespace millrace
