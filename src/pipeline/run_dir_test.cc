// The run folder: a dead one is swept, a live one and every folder of the user stay, concurrent starts do not collide.
#include "pipeline/run_dir.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
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
    temp_ = name;
    set("TMPDIR", temp_);
    set("XDG_RUNTIME_DIR", "");
    root_ = fmt::format("{}/millrace-{}", temp_, ::geteuid());
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
    fs::remove_all(temp_);
  }
  void set(const std::string& name, const std::string& value) {
    const char* before = std::getenv(name.c_str());
    before_.try_emplace(name, before ? std::optional<std::string>(before) : std::nullopt);
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  static void make_socket(const std::string& path) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ::close(fd);
  }
  // The folder that a killed instance leaves at `path`.
  static void make_dead(const std::string& path) {
    fs::create_directories(path);
    std::ofstream(path + "/lock") << "millrace run folder\n";
    make_socket(path + "/front.sock");
  }
  static void make_old(const std::string& path) {
    const timeval old[2] = {{std::time(nullptr) - 3600, 0}, {std::time(nullptr) - 3600, 0}};
    ASSERT_EQ(::utimes(path.c_str(), old), 0);
  }
  static void start() {
    const auto dir = RunDir::create();
    ASSERT_TRUE(dir.ok()) << dir.status().to_string();
  }

  std::string temp_, root_;
  std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(RunDirTest, IsPrivateAndGoesWithItsOwner) {
  std::string path;
  {
    auto dir = RunDir::create();
    ASSERT_TRUE(dir.ok()) << dir.status().to_string();
    path = dir->path();
    EXPECT_TRUE(path.starts_with(root_ + "/run-")) << path;
    for (const std::string& folder : {root_, path}) {
      struct stat info {};
      ASSERT_EQ(::stat(folder.c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, 0700u) << folder;
    }
    EXPECT_EQ(dir->endpoint("front"), "ipc://" + path + "/front.sock");
    make_socket(path + "/front.sock");
    const RunDir moved = std::move(dir).value();
    EXPECT_EQ(moved.path(), path);
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

// A start once removed every old folder named millrace-* of this user in the temporary folder, weights included.
TEST_F(RunDirTest, FoldersOfTheUserAreLeftAlone) {
  const std::string models = temp_ + "/millrace-models";
  fs::create_directories(models + "/demo");
  std::ofstream(models + "/demo/model.safetensors") << "weights";
  const std::string locked = temp_ + "/millrace-abcdef";  // looks like a run folder of an older release
  fs::create_directory(locked);
  std::ofstream(locked + "/lock");
  fs::create_directories(root_ + "/run-models");
  fs::permissions(root_, fs::perms::owner_all);
  std::ofstream(root_ + "/run-models/lock") << "notes of the user\n";
  std::ofstream(root_ + "/run-models/model.gguf") << "weights";
  for (const std::string& path : {models, locked, root_ + "/run-models"}) make_old(path);
  start();
  EXPECT_TRUE(fs::exists(models + "/demo/model.safetensors"));
  EXPECT_TRUE(fs::exists(locked + "/lock"));
  EXPECT_TRUE(fs::exists(root_ + "/run-models/lock"));
  EXPECT_TRUE(fs::exists(root_ + "/run-models/model.gguf"));
  RunDir::remove(models);
  RunDir::remove(locked);
  RunDir::remove(root_ + "/run-models");
  EXPECT_TRUE(fs::exists(models + "/demo/model.safetensors"));
  EXPECT_TRUE(fs::exists(locked + "/lock"));
  EXPECT_TRUE(fs::exists(root_ + "/run-models/model.gguf"));
}

TEST_F(RunDirTest, TheDeadAreSweptAndTheLivingAreNot) {
  auto alive = RunDir::create();
  ASSERT_TRUE(alive.ok());
  make_dead(root_ + "/run-abcdef");
  make_dead(root_ + "/other-abcdef");
  make_dead(temp_ + "/elsewhere");
  fs::create_directory_symlink(temp_ + "/elsewhere", root_ + "/run-linked");
  std::ofstream(root_ + "/run-file").put('x');
  fs::create_directory(root_ + "/run-empty");
  auto next = RunDir::create();
  ASSERT_TRUE(next.ok());
  EXPECT_NE(next->path(), alive->path());
  EXPECT_TRUE(fs::exists(alive->path() + "/lock"));
  EXPECT_FALSE(fs::exists(root_ + "/run-abcdef"));
  EXPECT_TRUE(fs::exists(root_ + "/other-abcdef/front.sock"));
  EXPECT_TRUE(fs::exists(temp_ + "/elsewhere/front.sock")) << "a link must not be followed";
  EXPECT_TRUE(fs::exists(root_ + "/run-file"));
  EXPECT_TRUE(fs::exists(root_ + "/run-empty")) << "another instance may be creating it";
}

TEST_F(RunDirTest, FilesThatThisProgramDidNotMakeStayInADeadFolder) {
  const std::string path = root_ + "/run-abcdef";
  make_dead(path);
  fs::permissions(root_, fs::perms::owner_all);
  std::ofstream(path + "/notes.txt") << "mine";
  std::ofstream(path + "/plain.sock") << "a file, not a socket";
  fs::create_directory(path + "/folder.sock");
  start();
  EXPECT_TRUE(fs::exists(path + "/notes.txt"));
  EXPECT_TRUE(fs::exists(path + "/plain.sock"));
  EXPECT_TRUE(fs::exists(path + "/folder.sock"));
  EXPECT_FALSE(fs::exists(path + "/front.sock"));
}

TEST_F(RunDirTest, TheRuntimeFolderIsPreferredWhereItIsTheUsers) {
  const std::string runtime = temp_ + "/runtime";
  fs::create_directory(runtime);
  set("XDG_RUNTIME_DIR", runtime);
  auto dir = RunDir::create();
  ASSERT_TRUE(dir.ok()) << dir.status().to_string();
  EXPECT_TRUE(dir->path().starts_with(runtime + "/millrace/run-")) << dir->path();
  set("XDG_RUNTIME_DIR", temp_ + "/missing");
  auto other = RunDir::create();
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_TRUE(other->path().starts_with(root_ + "/run-")) << other->path();
}

TEST_F(RunDirTest, ARootThatOthersMayEnterIsRefused) {
  fs::create_directory(root_);
  fs::permissions(root_, fs::perms(0755));
  const auto dir = RunDir::create();
  ASSERT_FALSE(dir.ok());
  EXPECT_EQ(dir.status().code(), StatusCode::kPermissionDenied);
  EXPECT_NE(dir.status().message().find("755"), std::string::npos) << dir.status().message();
  fs::remove(root_);
  std::ofstream(root_).put('x');
  EXPECT_FALSE(RunDir::create().ok());
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
  EXPECT_TRUE(fs::is_empty(temp_));
}

TEST_F(RunDirTest, ATemporaryFolderTooDeepForSocketsIsAnError) {
  const std::string deep = temp_ + "/" + std::string(90, 'x');
  fs::create_directory(deep);
  set("TMPDIR", deep);
  const auto dir = RunDir::create();
  ASSERT_FALSE(dir.ok());
  EXPECT_EQ(dir.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(dir.status().message().find("TMPDIR"), std::string::npos) << dir.status().message();
  set("TMPDIR", temp_ + "/missing");
  EXPECT_FALSE(RunDir::create().ok());
}

}  // namespace
}  // namespace millrace
