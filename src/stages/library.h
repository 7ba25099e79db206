// Library: the workers and rules that a pipeline's spec may name. app/ fills one at the start; nothing changes it
// after.
//
// Rules are pure: the same request and payloads give the same answer, so every stage and every replica decides alike.
// Owner: app/, for as long as the process runs. Thread safety: filled on one thread, then read from any.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/model.h"
#include "runner/chain_links.h"
#include "stages/stage_spans.h"
#include "stages/transfer/transfer_links.h"
#include "stages/worker.h"

namespace millrace {

// The range of a model's layers that a worker computes, of a chain over several stages.
struct ChainSlot {
  std::vector<LayerRange> ranges;            // of the chain, the first one first
  uint32_t index = 0;                        // of this worker's
  std::function<Result<ChainLinks>()> open;  // to the other ranges; once
};

struct Library {
  struct WorkerSlot {
    std::string stage;
    uint32_t replica = 0;
    int threads = 0;
    int64_t memory_mib = 0;
    uint32_t nth = 0;  // of so many replicas that share this machine
    int of = 1;
    bool streams = false;                              // its chunks go somewhere
    bool to_client = false;                            // namely to the client
    std::map<std::string, std::string> stream_to;      // the worker of each stage that they go to
    std::shared_ptr<const ChainSlot> chain = nullptr;  // null: it is in none
    OpenTransferLinks transfers = nullptr;             // empty: it has none
    OpenTransferLinks features = nullptr;              // to those that encode its media, or whose it encodes; likewise
    uint32_t weights_rank = 0;  // among all replicas of the pipeline that a trainer sends weights
    StageSpans spans = {};
  };
  using MakeWorker = std::function<Result<std::unique_ptr<Worker>>(const Value& args, const WorkerSlot& slot)>;
  // Which of the stage's targets; an empty list is an error of the request.
  using Route = std::function<Result<std::vector<std::string>>(ReqId id, const Value& result)>;
  // Which of wait_for, asked with each payload that comes; nullopt: not known yet.
  using WaitRule = std::function<Result<std::optional<std::vector<std::string>>>(ReqId id, const std::string& from,
                                                                                 const Value& payload)>;
  using Merge = std::function<Result<Value>(std::map<std::string, Value> payloads)>;
  using Projection = std::function<Result<Value>(const Value& result)>;
  // Which of the terminals complete a request, from the payload that was submitted.
  using TerminalRule = std::function<Result<std::vector<std::string>>(const Value& payload)>;

  // Of a worker's args, as far as the file alone shows; OK where there is no check.
  using CheckArgs = std::function<Status(const Value& args)>;

  std::map<std::string, MakeWorker> workers;
  std::set<std::string> with_weights;  // workers whose weights can be updated
  std::set<std::string> short_calls;   // workers whose calls never take longer than a step: they need no thread
  std::map<std::string, CheckArgs> args_checks;  // by worker
  std::map<std::string, Route> routes;
  std::map<std::string, WaitRule> wait_rules;
  std::map<std::string, Merge> merges;
  std::map<std::string, Projection> projections;
  std::map<std::string, TerminalRule> terminal_rules;
};

}  // namespace millrace
