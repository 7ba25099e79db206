#include "stages/log_lines.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"

namespace millrace {
namespace {

constexpr std::size_t kMaxProcessBytes = 64;  // of the number of a process

Status strange() { return invalid_argument("this is no reply to a command about the log"); }

Result<LogTailLine> parse_line(const Json& line) {
  const bool fits = line.is_array() && line.size() == 4 && line[0].is_number_unsigned() &&
                    line[1].is_number_integer() && line[2].is_number_unsigned() && line[3].is_string();
  if (!fits || line[2].get<uint64_t>() > static_cast<uint64_t>(LogLevel::kError)) return strange();
  // The sender did the same; it may be a program of someone else's.
  const std::string text = log_line(line[3].get_ref<const std::string&>());
  return LogTailLine{.number = line[0].get<uint64_t>(),
                     .unix_ms = line[1].get<int64_t>(),
                     .level = static_cast<LogLevel>(line[2].get<int>()),
                     .text = std::string(utf8_prefix(text, kMaxLogTailBytes))};
}

}  // namespace

const std::string& log_process() {
  static const std::string* const the_one = [] {
    std::random_device random;
    return new std::string(fmt::format("{:08x}{:08x}", random(), random()));
  }();
  return *the_one;
}

std::string log_lines_json(const std::string& asker) {
  std::string out = fmt::format(R"({{"process":"{}","lines":[)", log_process());
  if (asker == log_process()) return out + "]}";
  for (const LogTailLine& line : leased_log_lines(kLogLeaseMs)) {
    if (out.back() == ']') out += ',';
    out += fmt::format("[{},{},{},", line.number, line.unix_ms, static_cast<int>(line.level));
    json_append_string(out, line.text);
    out += ']';
  }
  return out + "]}";
}

Result<ProcessLog> parse_log_lines(const std::string& json) {
  ASSIGN_OR_RETURN(const Json reply, parse_json(json));
  if (!reply.is_object()) return strange();
  ProcessLog out;
  RETURN_IF_ERROR(json_read(reply, "process", out.process));
  const Json* lines = json_find(reply, "lines");
  if (out.process.empty() || out.process.size() > kMaxProcessBytes) return strange();
  if (lines == nullptr || !lines->is_array() || lines->size() > kMaxLogTailLines) return strange();
  for (const Json& line : *lines) {
    ASSIGN_OR_RETURN(LogTailLine parsed, parse_line(line));
    out.lines.push_back(std::move(parsed));
  }
  return out;
}

}  // namespace millrace
