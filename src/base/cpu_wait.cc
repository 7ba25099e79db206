#include "base/cpu_wait.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "base/clock.h"

namespace millrace {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;

// Empty where the thread has ended meanwhile.
std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The number at the beginning of `text`, which is cut behind it.
int64_t take_number(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return problem == std::errc() ? value : 0;
}

}  // namespace

CpuWait::Thread CpuWait::parse(std::string_view stat, std::string_view schedstat) {
  Thread thread;
  // "ID (NAME) STATE ...": the name may hold anything, parentheses too.
  const std::size_t name_end = stat.rfind(") ");
  thread.is_ready = name_end != std::string_view::npos && stat.substr(name_end + 2).starts_with('R');
  thread.ran_ns = take_number(schedstat);
  thread.waited_ns = take_number(schedstat);
  return thread;
}

int64_t CpuWait::waited_ms(const Thread& before, const Thread& after, int64_t interval_ms) {
  int64_t waited = (after.waited_ns - before.waited_ns) / kNsPerMs;
  if (before.is_ready && after.is_ready) {
    waited = std::max(waited, interval_ms - (after.ran_ns - before.ran_ns) / kNsPerMs);
  }
  return std::clamp<int64_t>(waited, 0, interval_ms);
}

int64_t CpuWait::take_ms() {
  const int64_t now_ms = monotonic_ms();
  const int64_t interval_ms = now_ms - std::exchange(taken_ms_, now_ms);
  std::unordered_map<int, Thread> now;
  int64_t longest = 0;
  std::error_code problem;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", problem)) {
    const std::string name = entry.path().filename();
    int id = 0;
    std::from_chars(name.data(), name.data() + name.size(), id);
    if (id == gettid()) continue;
    const Thread thread = parse(contents(entry.path() / "stat"), contents(entry.path() / "schedstat"));
    if (const auto before = threads_.find(id); before != threads_.end()) {
      longest = std::max(longest, waited_ms(before->second, thread, interval_ms));
    }
    now.emplace(id, thread);
  }
  threads_ = std::move(now);
  return longest;
}

}  // namespace millrace
