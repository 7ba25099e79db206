#include "base/memory_info.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>

namespace millrace {
namespace {

std::optional<uint64_t> number_of(const std::string& word) {
  uint64_t number = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number);
  return code == std::errc() ? std::optional(number) : std::nullopt;  // "max": none
}

// The number behind `key` in a file of lines "key number", or the file's only one.
std::optional<uint64_t> read_number(const std::string& path, const std::string& key = "") {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (!key.empty() && word != key) continue;
    if (!key.empty()) file >> word;
    return number_of(word);
  }
  return std::nullopt;
}

// The names of a version's files in the folder of a group.
struct Version {
  const char *limit, *used, *reclaimable;
};
constexpr Version kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Version kVersion2 = {"memory.max", "memory.current", "inactive_file"};

void apply_group(const std::string& folder, const Version& version, MemoryInfo& info) {
  const std::optional<uint64_t> limit = read_number(folder + version.limit);
  if (!limit) return;
  info.total_bytes = std::min(info.total_bytes, *limit);
  // Cached files count as used, and go when memory is wanted.
  uint64_t used = read_number(folder + version.used).value_or(0);
  used -= std::min(used, read_number(folder + "memory.stat", version.reclaimable).value_or(0));
  info.available_bytes = std::min(info.available_bytes, *limit - std::min(*limit, used));
}

// The group and all above it. In a container the path may be the host's, of which only the root is there.
void apply_groups(const std::string& mount, std::string path, const Version& version, MemoryInfo& info) {
  while (true) {
    apply_group(mount + path + "/", version, info);
    const std::size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return;
    path.resize(slash);
  }
}

}  // namespace

MemoryInfo memory_info(const std::string& root) {
  MemoryInfo info;
  info.total_bytes = 1024 * (read_number(root + "/proc/meminfo", "MemTotal:").value_or(0) +
                             read_number(root + "/proc/meminfo", "SwapTotal:").value_or(0));
  info.available_bytes = read_number(root + "/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" of version 2, "4:memory:/path" of version 1.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    const bool first_version = controllers.find(",memory,") != std::string::npos;
    if (first_version) apply_groups(root + "/sys/fs/cgroup/memory", path, kVersion1, info);
    if (controllers == ",,") apply_groups(root + "/sys/fs/cgroup", path, kVersion2, info);
  }
  return info;
}

}  // namespace millrace
