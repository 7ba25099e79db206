// The run folder: found dead it is swept, alive it is not, and starting at the same time hurts nobody.
#include "pipeline/run_dir.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

namespace millrace {
namespace {

namespace fs = std::filesystem;

class RunDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "rd-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    const char* before = std::getenv("TMPDIR");
    if (before) before_ = before;
    ::setenv("TMPDIR", root_.c_str(), 1);
  }
  void TearDown() override {
    before_ ? ::setenv("TMPDIR", before_->c_str(), 1) : ::unsetenv("TMPDIR");
    fs::remove_all(root_);
  }
  // A folder as a killed instance leaves it.
  std::string dead(const std::string& name) {
    const std::string path = root_ + "/" + name;
    fs::create_directory(path);
    std::ofstream(path + "/lock").put('x');
    std::ofstream(path + "/front.sock").put('x');
    return path;
  }
  static void make_old(const std::string& path) {
    const timeval old[2] = {{std::time(nullptr) - 3600, 0}, {std::time(nullptr) - 3600, 0}};
    ASSERT_EQ(::utimes(path.c_str(), old), 0);
  }

  std::string root_;
  std::optional<std::string> before_;
};

TEST_F(RunDirTest, IsPrivateAndGoesWithItsOwner) {
  std::string path;
  {
    auto dir = RunDir::create();
    ASSERT_TRUE(dir.ok()) << dir.status().to_string();
    path = dir->path();
    EXPECT_TRUE(path.starts_with(root_ + "/millrace-"));
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    EXPECT_EQ(dir->endpoint("front"), "ipc://" + path + "/front.sock");
    std::ofstream(path + "/front.sock").put('x');
    const RunDir moved = std::move(dir).value();
    EXPECT_EQ(moved.path(), path);
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(RunDirTest, TheDeadAreSweptAndTheLivingAreNot) {
  auto alive = RunDir::create();
  ASSERT_TRUE(alive.ok());
  const std::string gone = dead("millrace-abcdef");
  const std::string other = dead("somebody-else");
  const std::string file = root_ + "/millrace-file";
  std::ofstream(file).put('x');
  fs::create_directory_symlink(other, root_ + "/millrace-linked");
  const std::string young = root_ + "/millrace-young", old = root_ + "/millrace-old";  // without a lock file
  fs::create_directory(young);
  fs::create_directory(old);
  make_old(old);
  auto next = RunDir::create();
  ASSERT_TRUE(next.ok());
  EXPECT_NE(next->path(), alive->path());
  EXPECT_TRUE(fs::exists(alive->path() + "/lock"));
  EXPECT_FALSE(fs::exists(gone));
  EXPECT_TRUE(fs::exists(other + "/front.sock"));
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(fs::exists(young)) << "it may be one that is being made right now";
  EXPECT_FALSE(fs::exists(old));
}

TEST_F(RunDirTest, AKilledOwnersFolderIsSweptByTheNextStart) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto dir = RunDir::create();
    const std::string path = dir.ok() ? dir->path() : "";
    (void)!::write(ready[1], path.data(), path.size());
    ::pause();
    ::_exit(0);
  }
  char buffer[256] = {};
  const ssize_t size = ::read(ready[0], buffer, sizeof buffer);
  ASSERT_GT(size, 0);
  const std::string path(buffer, static_cast<std::size_t>(size));
  {
    auto while_alive = RunDir::create();
    ASSERT_TRUE(while_alive.ok());
    EXPECT_TRUE(fs::exists(path));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(path));
  auto next = RunDir::create();
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(fs::exists(path));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(RunDirTest, ManyStartsAtOnceAllGetTheirFolder) {
  constexpr int kThreads = 8, kRounds = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int round = 0; round < kRounds; ++round) {
        auto dir = RunDir::create();
        ASSERT_TRUE(dir.ok()) << dir.status().to_string();
        ASSERT_TRUE(fs::exists(dir->path() + "/lock")) << "swept while alive";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(RunDirTest, ATemporaryFolderTooDeepForSocketsIsSaid) {
  const std::string deep = root_ + "/" + std::string(90, 'x');
  fs::create_directory(deep);
  ::setenv("TMPDIR", deep.c_str(), 1);
  const auto dir = RunDir::create();
  ASSERT_FALSE(dir.ok());
  EXPECT_EQ(dir.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(dir.status().message().find("TMPDIR"), std::string::npos) << dir.status().message();
  ::setenv("TMPDIR", (root_ + "/missing").c_str(), 1);
  EXPECT_FALSE(RunDir::create().ok());
}

}  // namespace
}  // namespace millrace
