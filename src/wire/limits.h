// The named limits of everything that crosses a process border. A message over one of them is refused before its bytes
// are interpreted; the error says the limit and the value seen. Thread safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::wire {

inline constexpr uint32_t kWireVersion = 1;

inline constexpr std::size_t kMaxFrameBytes = 64u << 20;   // one ZeroMQ frame; set as ZMQ_MAXMSGSIZE on every socket
inline constexpr int kMaxNesting = 8;                      // maps and arrays inside one message
inline constexpr std::size_t kMaxMapEntries = 64;          // fields of one message
inline constexpr std::size_t kMaxBatchEntries = 4096;      // requests in one token or text batch
inline constexpr std::size_t kMaxPromptTokens = 4u << 20;  // ids in one request
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopStringBytes = 1024;
inline constexpr std::size_t kMaxStopTokenIds = 256;
inline constexpr std::size_t kMaxTextBytes = 16u << 20;  // one text delta
inline constexpr std::size_t kMaxErrorBytes = 4096;      // one error message
inline constexpr std::size_t kMaxNameBytes = 256;        // stage names, cache salts

}  // namespace millrace::wire
