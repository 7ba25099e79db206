// Logging: one line per event on stderr, through spdlog, whose header is included by log.cc alone (it costs 6 s a
// file).
//
//   LOG_INFO("loaded {} tensors in {:.2f} s", count, seconds);
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace millrace {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// `name` stands in every line: the stage or the process ("front", "scheduler"). Call once, before other threads start.
void log_init(std::string_view name, LogLevel level);
bool log_enabled(LogLevel level);
// `message` becomes one line: what clients sent stands in some of them.
void log_write(LogLevel level, std::string_view message);
// With \x0a for a newline, and so for every control character: neither a second line nor an escape sequence of a
// terminal is in it.
std::string log_line(std::string_view message);

}  // namespace millrace

#define MILLRACE_LOG(level, ...)                                                                  \
  do {                                                                                            \
    if (::millrace::log_enabled(level)) ::millrace::log_write(level, ::fmt::format(__VA_ARGS__)); \
  } while (0)
#define LOG_DEBUG(...) MILLRACE_LOG(::millrace::LogLevel::kDebug, __VA_ARGS__)
#define LOG_INFO(...) MILLRACE_LOG(::millrace::LogLevel::kInfo, __VA_ARGS__)
#define LOG_WARNING(...) MILLRACE_LOG(::millrace::LogLevel::kWarning, __VA_ARGS__)
#define LOG_ERROR(...) MILLRACE_LOG(::millrace::LogLevel::kError, __VA_ARGS__)
