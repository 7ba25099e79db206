// The conformance suite against the UCX relay, over shared memory and over tcp; and what is UCX's own.
#include "relay/ucx/ucx_relay.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "relay/op_table.h"
#include "relay/testing/await.h"
#include "relay/testing/conformance.h"
#include "relay/testing/fixture.h"

using namespace millrace;
using namespace millrace::relay_testing;

namespace {

Result<std::unique_ptr<Relay>> make_with(RelayOptions options, const char* transports) {
  options.listen = transports;
  return make_ucx_relay(options);
}

std::string why_not(const char* transports) {
  const auto relay = make_with(RelayOptions{}, transports);
  return relay.ok() ? std::string() : relay.status().to_string();
}

ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

#define NEED_UCX()                                                                  \
  if (const std::string why = why_not("ucx:posix,cma,tcp,self@lo"); !why.empty()) { \
    GTEST_SKIP() << why;                                                            \
  }

TEST(UcxRelay, AbsentLibraryIsAReasonAndNoCrash) {
  const auto relay = make_ucx_relay_from("libucp-that-is-not-there.so.0", {});
  ASSERT_FALSE(relay.ok());
  EXPECT_EQ(relay.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(relay.status().message().find("libucp-that-is-not-there.so.0"), std::string::npos)
      << relay.status().to_string();
}

TEST(UcxRelay, LibraryThatIsNotUcxIsAReason) {
  const auto relay = make_ucx_relay_from("libc.so.6", {});
  ASSERT_FALSE(relay.ok());
  EXPECT_EQ(relay.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(relay.status().message().find("ucp_"), std::string::npos) << relay.status().to_string();
}

TEST(UcxRelay, MissingTransportsAreAReason) {
  NEED_UCX();
  EXPECT_EQ(make_with({}, "ucx:").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(make_with({}, "ucx:tcp;rm@lo").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(make_with({}, "ucx:^tcp").status().code(), StatusCode::kInvalidArgument);
  const auto none = make_with({}, "ucx:tcp@no_such_device");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable) << none.status().to_string();
}

// Everything that a relay took of the system is back when it is gone, many times over: also with transfers open.
TEST(UcxRelay, DescriptorsAndThreadsComeBack) {
  NEED_UCX();
  for (const char* transports : {"ucx:posix,cma,tcp,self@lo", "ucx:tcp,self@lo"}) {
    ptrdiff_t fds = 0, threads = 0;
    for (int round = 0; round < 6; ++round) {
      {
        auto writer = make_with({}, transports), reader = make_with({}, transports);
        ASSERT_TRUE(writer.ok() && reader.ok());
        expect_round_trip(**writer, **reader, 1, {100, kMib});
        Sent open = send(**writer, 2, {8 * kMib});
        Received never = receive(**reader, open);
        (*(round % 2 ? writer : reader))->close();
      }
      if (round == 0) {  // what stays from the first time are caches
        fds = entries("/proc/self/fd");
        threads = entries("/proc/self/task");
      }
    }
    EXPECT_TRUE(eventually([&] { return entries("/proc/self/fd") <= fds && entries("/proc/self/task") <= threads; }))
        << entries("/proc/self/fd") << " descriptors, " << fds << " wanted; " << entries("/proc/self/task")
        << " threads, " << threads << " wanted";
  }
}

constexpr uint64_t kClassicSignals = 0x7fff'ffff;  // 1 .. 31; the C library's threads take 32 and 33

// Of this process: which signals have handlers.
uint64_t caught_signals() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigCgt:")) return std::stoull(line.substr(7), nullptr, 16) & kClassicSignals;
  }
  return 0;
}
uint64_t g_caught_before_ucx = 0;

TEST(UcxRelay, SignalHandlersStayOurs) {
  NEED_UCX();
  auto relay = make_with({}, "ucx:posix,cma,tcp,self@lo");
  ASSERT_TRUE(relay.ok());
  EXPECT_EQ(caught_signals(), g_caught_before_ucx);
}

// An idle relay sleeps, with a connection open: from some time on, a second costs next to no CPU. A thread that spins
// never comes to that.
TEST(UcxRelay, IdleCostsNothing) {
  NEED_UCX();
  auto writer = make_with({}, "ucx:posix,cma,tcp,self@lo"), reader = make_with({}, "ucx:posix,cma,tcp,self@lo");
  ASSERT_TRUE(writer.ok() && reader.ok());
  expect_round_trip(**writer, **reader, 1, {kMib});
  const auto used_ms = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  };
  for (int i = 0; i < 60; ++i) {
    const auto before = used_ms();
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    if (used_ms() - before < 50) return;
  }
  FAIL() << "the relay's threads never rest";
}

// Bytes that come by message, in several frames, with checksums and without: the pool is too small for a second one.
TEST(UcxRelay, WithoutChecksumsAWriterVouches) {
  NEED_UCX();
  RelayOptions options;
  options.checksum = false;
  for (const char* transports : {"ucx:cma,self,tcp@lo", "ucx:posix,cma,tcp,self@lo"}) {
    auto writer = make_with(options, transports), reader = make_with(options, transports);
    ASSERT_TRUE(writer.ok() && reader.ok());
    for (uint64_t seed = 0; seed < 20; ++seed) {
      expect_round_trip(**writer, **reader, seed, {seed * 100'000, 17, 5 * kMib + seed, 0, 30'000, 16 * kKib, 1});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  g_caught_before_ucx = caught_signals();
  std::vector<ConformanceSetup> setups;
  for (const auto& [name, transports] :
       {std::pair{"ucx_shm", "ucx:posix,cma,tcp,self@lo"}, std::pair{"ucx_tcp", "ucx:tcp,self@lo"}}) {
    ConformanceSetup setup;
    setup.name = name;
    setup.make = [transports = transports](const RelayOptions& o) { return make_with(o, transports); };
    setup.unavailable = why_not(transports);
    setup.left_over = [] {
      std::string found;
      for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
        const std::string name = entry.path().filename();
        if (name.starts_with("ucx_")) found += name + " ";
      }
      return found;
    };
    setups.push_back(std::move(setup));
  }
  return conformance_main(argc, argv, setups);
}
