// PipelineSpec: a pipeline as data. parse_pipeline() reads YAML, checks everything that can be known without running
// it, and names the line, the value seen and the value wanted (for an unknown key or name: the nearest one).
// docs/pipelines.md describes each key.
//
// Thread safety: values; free functions without state. yaml-cpp is included by spec.cc alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "stages/library.h"
#include "stages/stage_spec.h"

namespace millrace {

inline constexpr const char* kCoordinatorStage = "coordinator";  // as a peer; no stage may have this name
inline constexpr std::string_view kServerProcess = "front";      // the process that serves HTTP and coordinates
inline constexpr std::size_t kMaxSpecBytes = 1u << 20;
inline constexpr int64_t kMinLeaseMs = 500;
inline constexpr int64_t kMaxLeaseMs = 600'000;

// One of several equal stages.
struct StageReplica {
  std::string stage;
  uint32_t replica = 0;
};

struct PipelineSpec {
  std::string name;
  std::string entry;  // gets what is submitted; default: the first stage
  std::vector<StageSpec> stages;
  std::string terminals_rule;  // Library::terminal_rules; empty: every terminal completes every request
  RelaySpec relay;             // where a stage has none
  std::map<std::string, std::string> env_defaults;  // of every child process; never over what is set
  int64_t request_timeout_s = 600;
  int64_t lease_ms = 0;     // a stage that is silent for so long is lost; 0: kLeaseMs, or that of text serving
  int max_requests = 4096;  // live in the pipeline
  std::string control;      // the coordinator's endpoint for stages of other hosts: "tcp://10.0.0.1:30100"; empty: none
  std::string key_file;     // the shared key of the hosts; needed where `control` is not loopback
  KeyLines key_lines;
  bool readable = true;  // false: a key outside the stages has an error of its own

  const StageSpec* find(std::string_view name) const;
  std::vector<std::string> terminals() const;
  bool over_hosts() const;  // some stage runs elsewhere than the server
  // What the environment of a process with these stages must have: their `env` together.
  std::map<std::string, std::string> env_of(const std::vector<std::string>& stages) const;
  // kInvalidArgument, with `file` and line: a stage has an environment, and the server's process is to run it.
  Status may_be_single(const std::string& file) const;
  // 1 where the file does not have the key.
  int line_of(std::string_view key) const;
  // Equal for equal pipelines: a process that joins must have been started with the same one.
  uint64_t hash() const;
};

// `file` is for messages. All errors at once, one a line, up to kMaxSpecErrors, but for those that may only follow from
// others (spec_check.cc): "text.yaml:12: next of 'think' is
// 'decoed'; wanted the name of a stage; perhaps 'decode'".
inline constexpr int kMaxSpecErrors = 20;
Result<PipelineSpec> parse_pipeline(std::string_view yaml, const std::string& file, const Library& library);
Result<PipelineSpec> load_pipeline(const std::string& path, const Library& library);

// For Graphviz, and a picture without it: stages as boxes in their processes and hosts, payload edges solid, streams
// dashed.
std::string to_dot(const PipelineSpec& spec);
std::string to_svg(const PipelineSpec& spec);

}  // namespace millrace
