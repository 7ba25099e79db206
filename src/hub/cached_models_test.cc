// What a removal takes from the cache.
#include "hub/cached_models.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace millrace::hub {
namespace {

namespace fs = std::filesystem;

class CachedModelsTest : public ::testing::Test {
 protected:
  CachedModelsTest() { fs::remove_all(cache_.root()); }
  void TearDown() override { fs::remove_all(cache_.root()); }

  // A file of a snapshot; the path of its link.
  std::string add(const std::string& repository, const std::string& file) {
    fs::create_directories(cache_.folder(repository) + "/blobs");
    std::ofstream(cache_.blob(repository, "blob-" + file)) << file;
    EXPECT_TRUE(link_file(cache_, repository, kCommit, file, "blob-" + file).ok());
    EXPECT_TRUE(set_revision(cache_, repository, "main", kCommit).ok());
    return cache_.snapshot(repository, kCommit) + "/" + file;
  }

  const std::string kCommit = std::string(40, 'a');
  const Cache cache_{::testing::TempDir() + "/cached_models_test"};
};

TEST_F(CachedModelsTest, ARemovalTakesTheModelsOfItsFiles) {
  const std::string small = add("org/both", "model-Q4_K_M.gguf"), large = add("org/both", "model-Q8_0.gguf");
  const std::string folder = fs::path(add("org/both", "config.json")).parent_path();
  const std::string other = add("org/both-2", "model-Q4_K_M.gguf");
  const std::string blob = cache_.blob("org/both", "blob-model-Q8_0.gguf");
  // All of the repository.
  for (const std::string& path : {small, large, folder, blob}) {
    EXPECT_TRUE(is_removed_with(cache_, {"org/both", ""}, path)) << path;
  }
  for (const std::string& path : {other, cache_.root() + "/absent.gguf", cache_.root()}) {
    EXPECT_FALSE(is_removed_with(cache_, {"org/both", ""}, path)) << path;
  }
  // One quantization.
  for (const std::string& path : {large, blob}) {
    EXPECT_TRUE(is_removed_with(cache_, {"org/both", "Q8_0"}, path)) << path;
  }
  for (const std::string& path : {small, folder, other}) {
    EXPECT_FALSE(is_removed_with(cache_, {"org/both", "Q8_0"}, path)) << path;
  }
  EXPECT_FALSE(is_removed_with(cache_, {"org/absent", ""}, large));
  ASSERT_TRUE(remove_model(cache_, {"org/both", "Q8_0"}).ok());
  EXPECT_TRUE(fs::exists(small) && !fs::exists(large) && !fs::exists(blob));
}

}  // namespace
}  // namespace millrace::hub
