// StageSpec: one stage of a pipeline as the YAML file describes it, checked (pipeline/spec.h reads it;
// each key for users: docs/pipelines.md). Names of functions and workers are those of the Library.
//
// Thread safety: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "payload/value.h"
#include "stages/loop/limits.h"
#include "stages/replica_router.h"

namespace millrace {

inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Workers beside a stage `generate` that get no payloads: one computes rows of hidden values, the other KV pages.
inline constexpr std::string_view kLayersWorker = "layers";
inline constexpr std::string_view kPrefillWorker = "prefill";
inline constexpr std::string_view kEncodeWorker = "encode";

inline constexpr int kMaxStages = 64;  // of one pipeline
inline constexpr int64_t kMinStalledMs = 100;
inline constexpr int64_t kMaxStalledMs = 86'400'000;
inline constexpr int kMaxReplicasOfStage = 64;  // equal copies of one stage

// Where the keys of one map of the file stand.
using KeyLines = std::map<std::string, int, std::less<>>;

// How the stage's payloads travel. Empty or 0: the pipeline's, then the backend's own default.
struct RelaySpec {
  std::string backend = "auto";  // of all edges from this stage; "auto": the best that both ends have
  int64_t pool_mib = 0;
  int credits = 0;
  int lease_ms = 0;
};

struct StageResources {
  int threads = 0;          // compute threads of the worker; 0: what it takes by itself
  int64_t memory_mib = 0;   // that the worker may use; 0: unlimited
  int max_requests = 1024;  // live in this stage; more fail with kResourceExhausted
};

struct StageSpec {
  std::string name;               // letters, digits, '-' and '_'
  std::string worker;             // what does the work: Library::workers
  Value args;                     // for the worker, a map
  std::vector<std::string> next;  // stages that get the result; empty: a terminal
  bool terminal = false;
  std::string route;                   // Library::routes: which of `next` for this request; empty: all
  std::vector<std::string> wait_for;   // fan-in: payloads of these are merged; empty: every payload starts the work
  std::string wait_for_rule;           // Library::wait_rules: which of them for this request; empty: all
  std::string merge;                   // Library::merges: the payloads to one; needed with wait_for
  std::vector<std::string> stream_to;  // stages that get the chunks that the worker emits
  std::string stream_done_to;          // Library::routes: which of stream_to this request streams to; empty: all
  bool can_accept_stream_before_payload = false;       // else a chunk before the payload fails the request
  std::map<std::string, std::string> project_payload;  // target -> Library::projections: what of the result it gets
  std::optional<LayerRange> layers;  // of the model, that this stage computes: a range of a layer split
  std::string layers_to;             // the stage with the next range; no edge: payloads never travel on it
  std::string prefill_from;          // the stage that computes long prompts for this one; no edge either
  std::string encode_from;           // the stage that encodes its pictures and audio; nor this
  std::string process;               // stages of one name share a process
  std::string host;  // where it runs: empty = this host; else a name that `millrace stage --join` registers
  int replicas = 1;
  ReplicaPolicy replica_policy = ReplicaPolicy::kLeastRequests;  // which of them serves a request
  RelaySpec relay;
  StageResources resources;
  // One call of the worker that lasts longer means that the stage has stalled; 0: it may last for ever.
  int64_t stalled_ms = loop::kWorkerStalledMs;
  std::map<std::string, std::string> env;  // of its process, where it is a child
  int line = 0;                            // in the file, for messages
  KeyLines key_lines;
  bool readable = true;  // false: a key has an error of its own, so that others may only follow from it

  bool computes_rows() const { return worker == kLayersWorker; }
  bool computes_prompts() const { return worker == kPrefillWorker; }
  bool encodes_media() const { return worker == kEncodeWorker; }
  bool takes_payloads() const { return !computes_rows() && !helps(); }
  // Requests go on without it, or without what it does for them.
  bool helps() const { return computes_prompts() || encodes_media(); }
  // The stage's own where the file does not have the key.
  int line_of(std::string_view key) const {
    const auto found = key_lines.find(key);
    return found == key_lines.end() ? line : found->second;
  }
};

}  // namespace millrace
