// The last lines of a process's log on their way to the server, for readers of /live/events. A process keeps
// them while it is asked again within kLogLeaseMs (base/log_tail.h); without such a client nothing is sent.
//
//   {"process": "5f0c...", "lines": [[number, unix_ms, level, "text"], ...]}
//
// Each stage of a process replies the same; by `process`, a number of its own that each process has, the server takes
// them once, and leaves its own out.
//
// Thread safety: free functions, from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log_tail.h"
#include "base/status.h"

namespace millrace {

inline constexpr int64_t kLogLeaseMs = 10'000;

// Of this process.
const std::string& log_process();
// `asker`: the process that asks. To itself, as the stages of a server with one process do, it has nothing to send.
std::string log_lines_json(const std::string& asker);

struct ProcessLog {
  std::string process;
  std::vector<LogTailLine> lines;  // kMaxLogTailLines at most, of kMaxLogTailBytes each, without control characters
};
// kInvalidArgument: it is no such reply.
Result<ProcessLog> parse_log_lines(const std::string& json);

}  // namespace millrace
