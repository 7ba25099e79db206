// Workload: the requests that a load test sends, made from a seed before the first of them leaves, so that two servers
// and two runs get the same bytes.
//
//   random         every prompt is its own: nothing comes from a prefix cache
//   shared-prefix  `groups` prefixes of prefix_tokens, each followed by `prompt_tokens` of the request's own; the order
//                  goes round the groups, as many users of a few system prompts do
//   trace          a file of JSON lines, one request each: {"timestamp": ms, "input_length": n, "output_length": n} as
//                  published traces have it, or "prompt": text instead of input_length. Prompts with equal "hash_ids"
//                  prefixes (one id a block of 512 tokens) share those tokens
//
// Prompts are token ids in [kFirstToken, vocabulary): the server sees exactly that many tokens. Servers that take no
// ids get words instead (`text`), of which each is at least one token.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::load {

inline constexpr int kFirstToken = 10;              // ids below it are often special
inline constexpr int64_t kMaxRequests = 1'000'000;  // of one workload
inline constexpr int64_t kMaxTokens = 1'000'000;    // of one prompt or answer
inline constexpr int64_t kTraceBlockTokens = 512;   // that one of a trace's hash ids stands for
inline constexpr uint64_t kMaxTraceBytes = 1u << 30;

enum class WorkloadKind : uint8_t { kRandom, kSharedPrefix, kTrace };

struct WorkloadOptions {
  WorkloadKind kind = WorkloadKind::kRandom;
  int64_t requests = 64;  // of a trace: at most so many of its lines
  int64_t prompt_tokens = 64;
  int64_t answer_tokens = 64;
  int64_t groups = 4;
  int64_t prefix_tokens = 1024;
  int64_t vocabulary = 2000;
  bool text = false;
  double rate = 0;    // requests a second, arriving at random (Poisson); 0: each client asks again when it is answered
  std::string trace;  // the file
  double trace_speed = 1;  // 2: twice as fast as by its timestamps
  uint64_t seed = 1;
};

struct Request {
  int64_t arrival_us = 0;     // from the start, of an open loop
  int64_t prompt_tokens = 0;  // as the workload means them
  int64_t answer_tokens = 0;
  std::string prompt;  // a JSON value: an array of ids, or a string
};

struct Workload {
  std::vector<Request> requests;
  bool open_loop = false;  // requests leave when they arrive, whatever became of the ones before
};

// kInvalidArgument or kTooLarge, with the option's name or the trace's line.
Result<Workload> make_workload(const WorkloadOptions& options);

// "random", "shared-prefix", "trace".
Result<WorkloadKind> parse_workload_kind(std::string_view name);

}  // namespace millrace::load
