// The cache's links and refs, written by several pulls at once.
#include "hub/cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "formats/mapped_file.h"

namespace millrace::hub {
namespace {

namespace fs = std::filesystem;

// Pulls of one repository share its lock, and those in containers may have equal process numbers.
TEST(Cache, PullsOfOneRepositoryDoNotDisturbEachOther) {
  const std::string root = ::testing::TempDir() + "/cache_test";
  fs::remove_all(root);
  const Cache cache(root);
  const std::string repository = "org/name", commit(40, 'a'), ref = cache.folder(repository) + "/refs/main";
  std::atomic<int> failures{0}, empty{0};
  std::vector<std::thread> pulls;
  pulls.reserve(8);
  for (int i = 0; i < 8; ++i) {
    pulls.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        if (!link_file(cache, repository, commit, "model.gguf", "etag").ok()) ++failures;
        if (!set_revision(cache, repository, "main", commit).ok()) ++failures;
        const auto text = read_small_file(ref, 256);
        if (!text.ok() || *text != commit) ++empty;
      }
    });
  }
  for (std::thread& pull : pulls) pull.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(empty, 0);
  EXPECT_EQ(cached_commit(cache, repository, "main"), commit);
  // No temporary file stays.
  std::vector<std::string> names;
  for (const char* folder : {"/refs", "/snapshots"}) {
    for (const auto& entry : fs::recursive_directory_iterator(cache.folder(repository) + folder)) {
      names.push_back(entry.path().filename().string());
    }
  }
  EXPECT_EQ(names.size(), 3u);  // main, the commit's folder and its link
  fs::remove_all(root);
}

}  // namespace
}  // namespace millrace::hub
