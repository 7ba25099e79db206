#include "base/memory_info.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace millrace {
namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

// A /proc and a /sys of a machine with 16 GiB, 10 of them free.
class MemoryInfoTest : public testing::Test {
 protected:
  void SetUp() override {
    write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1024 kB\nMemAvailable:   10485760 kB\n");
  }
  ~MemoryInfoTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void expect(uint64_t total, uint64_t available) {
    const MemoryInfo info = memory_info(root_);
    EXPECT_EQ(info.total_bytes, total);
    EXPECT_EQ(info.available_bytes, available);
  }

  const std::string root_ = testing::TempDir() + "memory_info_test";
};

TEST_F(MemoryInfoTest, OfAMachineWithoutGroups) { expect(16 * kGib, 10 * kGib); }

TEST_F(MemoryInfoTest, AGroupWithoutALimit) {
  write("/proc/self/cgroup", "0::/user.slice\n");
  write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  expect(16 * kGib, 10 * kGib);
}

TEST_F(MemoryInfoTest, TheSmallestOfTheGroupsAboveCounts) {
  write("/proc/self/cgroup", "0::/system.slice/millrace.service\n");
  write("/sys/fs/cgroup/system.slice/memory.max", std::to_string(4 * kGib));
  write("/sys/fs/cgroup/system.slice/memory.current", std::to_string(3 * kGib));
  write("/sys/fs/cgroup/system.slice/memory.stat", "anon 17\ninactive_file " + std::to_string(kGib) + "\n");
  write("/sys/fs/cgroup/system.slice/millrace.service/memory.max", std::to_string(8 * kGib));
  write("/sys/fs/cgroup/system.slice/millrace.service/memory.current", std::to_string(kGib));
  expect(4 * kGib, 2 * kGib);  // 3 are used, of which one can be reclaimed
}

TEST_F(MemoryInfoTest, AContainerSeesItsGroupAsTheRoot) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", std::to_string(2 * kGib));
  write("/sys/fs/cgroup/memory.current", std::to_string(3 * kGib));
  expect(2 * kGib, 0);
}

TEST_F(MemoryInfoTest, GroupsOfVersion1) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(6 * kGib));
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(5 * kGib));
  write("/sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_inactive_file " + std::to_string(2 * kGib) + "\n");
  expect(6 * kGib, 3 * kGib);
}

TEST(MemoryInfo, OfThisMachine) {
  const MemoryInfo info = memory_info();
  EXPECT_GT(info.available_bytes, 0u);
  EXPECT_GE(info.total_bytes, info.available_bytes);
}

}  // namespace
}  // namespace millrace
