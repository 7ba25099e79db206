// The supervisor starts this very program again, so main() below plays the children and, for one test, a parent that is
// killed.
#include "pipeline/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "base/log.h"
#include "base/log_tail.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <typename Condition>
bool eventually(Condition condition, int timeout_ms = 120'000) {
  const int64_t end_ms = now_ms() + timeout_ms;
  while (!condition()) {
    if (now_ms() > end_ms) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// Gone, or dead and waiting for its parent.
bool is_dead(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  return !(stat >> number >> name >> state) || state == "Z" || state == "X";
}

pid_t read_pid(const std::string& file) {
  std::ifstream in(file);
  pid_t pid = 0;
  return in >> pid ? pid : 0;
}

void write_pid(const std::string& file) {
  std::ofstream(file + ".new") << ::getpid();
  fs::rename(file + ".new", file);
}

// ---- the children
// ----------------------------------------------------------------------------------------------------

// Until it is killed. Longer than any test waits; and it ends, whatever goes wrong.
void sleep_to_the_end() {
  for (int i = 0; i < 60'000; ++i) ::usleep(10'000);
}

// stage KIND FILE PARENT: writes its pid to FILE, then behaves as KIND.
int child_main(const std::string& kind, const std::string& file, pid_t parent) {
  if (kind.starts_with("exit")) return std::atoi(kind.c_str() + 4);
  if (kind == "abort") ::abort();
  if (kind == "stubborn") ::signal(SIGTERM, SIG_IGN);
  if (!become_child(parent).ok()) return 1;
  if (kind == "env") {
    std::ofstream out(file + ".env");
    for (const char* name : {"SV_SET", "SV_OVER", "SV_CHILD", "SV_FREE"}) {
      const char* value = std::getenv(name);
      out << (value ? value : "-") << ' ';
    }
  }
  write_pid(file);
  sleep_to_the_end();
  return 0;
}

// parent FILE: supervises one sleeper until it is killed.
int parent_main(const std::string& file) {
  const std::string self = std::to_string(::getpid());
  Supervisor supervisor({{"child",
                          [&](uint64_t) {
                            return std::vector<std::string>{"stage", "sleep", file, self};
                          }}},
                        {[](auto&, auto) {}, [](auto&, auto&) {}, [](auto&) {}});
  supervisor.start();
  sleep_to_the_end();
  return 0;
}

// ---- the tests
// -------------------------------------------------------------------------------------------------------

struct Event {
  std::string what;  // "starting 1", "died exit code 3", "gave up"
  int64_t at_ms;
};

class SupervisorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "sv-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    supervisor_.reset();
    fs::remove_all(folder_);
  }

  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  ChildSpec child(const std::string& name, const std::string& kind) {
    return {name, [kind, path = file(name), self = std::to_string(::getpid())](uint64_t) {
              return std::vector<std::string>{"stage", kind, path, self};
            }};
  }
  void start(std::vector<ChildSpec> children) {
    supervisor_ = std::make_unique<Supervisor>(
        std::move(children),
        SupervisorEvents{[this](const std::string& name, uint64_t n) { note(name, "starting " + std::to_string(n)); },
                         [this](const std::string& name, const std::string& how) { note(name, "died " + how); },
                         [this](const std::string& name) { note(name, "gave up"); }});
    supervisor_->start();
  }
  void note(const std::string& name, const std::string& what) {
    std::lock_guard lock(mutex_);
    events_[name].push_back({what, now_ms()});
  }
  std::vector<Event> events(const std::string& name) {
    std::lock_guard lock(mutex_);
    return events_[name];
  }
  pid_t wait_for_pid(const std::string& name) {
    pid_t pid = 0;
    EXPECT_TRUE(eventually([&] { return (pid = read_pid(file(name))) > 0; })) << name << " did not start";
    return pid;
  }

  std::string folder_;
  std::mutex mutex_;
  std::map<std::string, std::vector<Event>> events_;
  std::unique_ptr<Supervisor> supervisor_;
};

TEST_F(SupervisorTest, AChildThatHangsIsKilledAndStartedAgain) {
  start({child("a", "stubborn"), child("b", "sleep")});
  const pid_t hung = wait_for_pid("a"), other = wait_for_pid("b");
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);  // stands still, and would not look at SIGTERM
  siginfo_t stopped;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(hung), &stopped, WSTOPPED | WNOWAIT), 0);
  supervisor_->kill_hung("unknown", 1);
  supervisor_->kill_hung("a", 1);
  ASSERT_TRUE(eventually([&] { return is_dead(hung) && read_pid(file("a")) != hung; }));
  EXPECT_TRUE(eventually([&] { return events("a").size() >= 3; }));
  EXPECT_EQ(events("a")[1].what, "died killed by signal 9 (KILL)");
  EXPECT_EQ(events("a")[2].what, "starting 2");
  EXPECT_FALSE(is_dead(other));
  EXPECT_EQ(events("b").size(), 1u);
}

// The hint at the kernel's memory is for kills that are not the supervisor's own.
TEST_F(SupervisorTest, TheLogNamesTheMemoryOfTheKernelOnlyForAKillOfAnother) {
  log_init("test", LogLevel::kError);
  const LogFollower log;
  const auto stopped = [&log](std::size_t times) {  // the line about the last stop
    std::string last;
    EXPECT_TRUE(eventually([&] {
      std::size_t seen = 0;
      for (const LogTailLine& line : log.lines()) {
        if (line.text.find("stopped") != std::string::npos) ++seen, last = line.text;
      }
      return seen >= times;
    }));
    return last;
  };
  start({child("a", "sleep")});
  const pid_t hung = wait_for_pid("a");
  fs::remove(file("a"));
  supervisor_->kill_hung("a", 1);
  EXPECT_EQ(stopped(1).find("memory"), std::string::npos) << stopped(1);
  const pid_t second = wait_for_pid("a");
  EXPECT_NE(second, hung);
  ASSERT_EQ(::kill(second, SIGKILL), 0);
  EXPECT_NE(stopped(2).find("memory"), std::string::npos) << stopped(2);
  supervisor_.reset();
  log_init("test", LogLevel::kOff);
}

TEST_F(SupervisorTest, ADeadChildIsNoticedAndStartedAgain) {
  start({child("a", "sleep"), child("b", "sleep")});
  const pid_t first = wait_for_pid("a");
  const pid_t other = wait_for_pid("b");
  fs::remove(file("a"));
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  const pid_t second = wait_for_pid("a");
  EXPECT_NE(second, first);
  const auto seen = events("a");
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].what, "starting 1");
  EXPECT_EQ(seen[1].what, "died killed by signal 9 (KILL)");
  EXPECT_EQ(seen[2].what, "starting 2");
  EXPECT_EQ(events("b").size(), 1u);
  EXPECT_FALSE(is_dead(other));
}

TEST_F(SupervisorTest, WhatATerminalSendsToItsGroupDoesNotEndAChild) {
  start({child("a", "sleep")});
  const pid_t pid = wait_for_pid("a");
  for (const int signal : {SIGINT, SIGHUP}) {
    ASSERT_EQ(::kill(pid, signal), 0);
    EXPECT_FALSE(eventually([&] { return is_dead(pid); }, 100)) << signal;
  }
  EXPECT_EQ(events("a").size(), 1u);
}

TEST_F(SupervisorTest, AChildHasItsEnvironmentThenOursThenTheDefaults) {
  ::setenv("SV_SET", "ours", 1);
  ::setenv("SV_OVER", "ours", 1);
  ChildSpec spec = child("a", "env");
  spec.env = {{"SV_OVER", "own=1"}, {"SV_CHILD", "own"}};
  spec.env_defaults = {{"SV_SET", "default"}, {"SV_CHILD", "default"}, {"SV_FREE", "default"}};
  start({std::move(spec)});
  wait_for_pid("a");
  ::unsetenv("SV_SET");
  ::unsetenv("SV_OVER");
  std::string seen;
  std::getline(std::ifstream(file("a") + ".env"), seen);
  EXPECT_EQ(seen, "ours own=1 own default ");
}

TEST_F(SupervisorTest, ALateReportOfADeadIncarnationDoesNotEndTheNext) {
  start({child("a", "sleep")});
  const pid_t first = wait_for_pid("a");
  fs::remove(file("a"));
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  const pid_t second = wait_for_pid("a");
  supervisor_->kill_hung("a", 1);
  EXPECT_FALSE(eventually([&] { return is_dead(second); }, 10 * kSupervisePollMs));
  supervisor_->kill_hung("a", 2);
  EXPECT_TRUE(eventually([&] { return events("a").size() >= 4; }));
  EXPECT_EQ(events("a")[3].what, "died killed by signal 9 (KILL)");
}

TEST_F(SupervisorTest, PausesGrow) {
  start({child("a", "exit3")});
  ASSERT_TRUE(eventually([&] { return events("a").size() >= 7; }));
  const auto seen = events("a");
  int64_t pause_ms = kRestartPauseMs;
  for (std::size_t i = 1; i + 1 < 7; i += 2, pause_ms *= 2) {
    EXPECT_EQ(seen[i].what, "died exit code 3");
    EXPECT_EQ(seen[i + 1].what, "starting " + std::to_string(i / 2 + 2));
    EXPECT_GE(seen[i + 1].at_ms - seen[i].at_ms, pause_ms - 2);
  }
}

TEST_F(SupervisorTest, BadInputIsNotTriedAgain) {
  start({child("a", "exit" + std::to_string(kExitBadInput)), child("b", "abort")});
  ASSERT_TRUE(eventually([&] { return events("a").size() == 3 && events("b").size() >= 3; }));
  EXPECT_EQ(events("a")[1].what, "died exit code 2");
  EXPECT_EQ(events("a")[2].what, "gave up");
  EXPECT_EQ(events("b")[1].what, "died killed by signal 6 (ABRT)");
  std::this_thread::sleep_for(std::chrono::milliseconds(kRestartPauseMs + 100));
  EXPECT_EQ(events("a").size(), 3u);
}

TEST_F(SupervisorTest, WhoHadServedIsTriedAgain) {
  const std::string kind = "exit" + std::to_string(kExitBadInput);
  SupervisorEvents recorded{
      [this](const std::string& name, uint64_t n) { note(name, "starting " + std::to_string(n)); },
      [this](const std::string& name, const std::string& how) { note(name, "died " + how); },
      [this](const std::string& name) { note(name, "gave up"); }};
  recorded.had_served = [](const std::string& name) { return name == "a"; };
  supervisor_ =
      std::make_unique<Supervisor>(std::vector<ChildSpec>{child("a", kind), child("b", kind)}, std::move(recorded));
  supervisor_->start();
  ASSERT_TRUE(eventually([&] { return events("a").size() >= 5 && events("b").size() == 3; }));
  EXPECT_EQ(events("a")[1].what, "died exit code 2");
  EXPECT_EQ(events("a")[4].what, "starting 3");
  EXPECT_EQ(events("b")[2].what, "gave up");
}

TEST_F(SupervisorTest, StopAsksFirst) {
  start({child("a", "sleep")});
  const pid_t pid = wait_for_pid("a");
  supervisor_->stop(120'000);  // SIGTERM is enough
  EXPECT_TRUE(is_dead(pid));
  supervisor_->stop(0);
  EXPECT_EQ(events("a").size(), 1u);
}

TEST_F(SupervisorTest, StopKillsTheStubbornOnesAfterTheGrace) {
  start({child("a", "stubborn"), child("b", "stubborn")});
  const pid_t first = wait_for_pid("a"), second = wait_for_pid("b");
  const int64_t begin_ms = now_ms();
  supervisor_->stop(200);
  EXPECT_GE(now_ms() - begin_ms, 199);
  EXPECT_TRUE(is_dead(first));
  EXPECT_TRUE(is_dead(second));
}

TEST_F(SupervisorTest, StopBeforeAnythingStartedReturns) {
  supervisor_ = std::make_unique<Supervisor>(std::vector<ChildSpec>{child("a", "sleep")}, SupervisorEvents{});
  supervisor_->stop(0);
}

// An ignored SIGCHLD is inherited from the parent: the kernel would then reap the children itself.
TEST_F(SupervisorTest, DeathsAreNoticedUnderAnInheritedIgnoreOfSigchld) {
  ::signal(SIGCHLD, SIG_IGN);
  start({child("a", "exit3")});
  const bool noticed = eventually([&] { return events("a").size() >= 2; });
  supervisor_.reset();
  ::signal(SIGCHLD, SIG_DFL);
  ASSERT_TRUE(noticed);
  EXPECT_EQ(events("a")[1].what, "died exit code 3");
}

TEST_F(SupervisorTest, ChildrenDieWithAParentThatIsKilled) {
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::execl("/proc/self/exe", "parent", "parent", file("a").c_str(), nullptr);
    ::_exit(127);
  }
  const pid_t grandchild = wait_for_pid("a");
  ASSERT_GT(grandchild, 0);
  EXPECT_FALSE(is_dead(grandchild));
  ASSERT_EQ(::kill(parent, SIGKILL), 0);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(eventually([&] { return is_dead(grandchild); }));
}

TEST_F(SupervisorTest, AChildWithoutItsParentIsReported) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(become_child(1 << 22).code() == StatusCode::kUnavailable ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(parent_alive(::getppid()));
  EXPECT_FALSE(parent_alive(::getpid()));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "stage") {
    return millrace::child_main(argv[2], argv[3], std::atoi(argv[4]));
  }
  if (argc == 3 && std::string(argv[1]) == "parent") return millrace::parent_main(argv[2]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
