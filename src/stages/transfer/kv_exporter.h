// KvExporter: the transfers of a server that computes prompts (P): from KvWant, or from a request that will be wanted,
// to KvEnd. A deterministic state machine without clock, sockets or threads.
//
//   on_want()  -> [compute the prompt] -> a prefix is cached -> parts -> taken -> KvEnd
//   on_offer() -> a request computes   -> lease              -> KvWant           -> the same
//
// The tokens and the namespace of a want are compared with the pages themselves: by the tree, which finds pages of
// equal tokens only, and for an offer with the request's. So a wrong or stale id never gives another prompt's pages.
// Of the step that computes now, layers are sent as they are stored; where a step fails meanwhile, so does what has had
// such layers. Of what was computed so far a lease is kept until the end, or kLeaseMs after D's last message
// (scheduler/memory.h has its limit). Each transfer that P cannot complete ends with one KvEnd that has the reason.
//
// Owner: a prefill server or the worker `generate`. Thread safety: the owner's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "stages/transfer/kv_sender.h"
#include "stages/transfer/limits.h"
#include "stages/transfer/part_buffers.h"
#include "stages/transfer/transfer_counters.h"
#include "stages/transfer/transfer_env.h"
#include "stages/transfer/transfer_links.h"
#include "stages/transfer/transfer_tombstones.h"

namespace millrace::transfer {

// Computes a prompt whose pages are wanted. `job` is different for each call.
struct PrefillJobs {
  std::function<void(uint64_t job, const std::vector<int32_t>& tokens, const std::string& extra_key)> begin;
  std::function<void(uint64_t job)> cancel;
};

class KvExporter {
 public:
  // `env` outlives it. Without `jobs`, pages are those of requests: on_offer().
  // `layers_bytes`: of layers that are computed now, fewer are not sent alone.
  // `spans`: of wants whose request is traced.
  KvExporter(TransferEnv& env, std::optional<PrefillJobs> jobs, int64_t layers_bytes = kLayersBytes,
             StageSpans spans = {});

  void on_want(wire::KvWant want, int64_t now_ms);
  void on_taken(const wire::KvTaken& taken, int64_t now_ms);
  void on_end(const wire::KvEnd& end, int64_t now_ms);

  // The servers that may want something now: what others wanted ends.
  void set_takers(const std::vector<TransferPeers::Replica>& takers, int64_t now_ms);

  // A job has ended, well or not: what it computed is in the cache.
  void on_job_end(uint64_t job, const Status& status);
  // A request whose pages will be wanted under this id begins. kInvalidArgument: the id was used before;
  // kResourceExhausted: too many are open.
  Status on_offer(const TransferId& id, std::vector<int32_t> tokens, std::string extra_key, int64_t now_ms);
  // It has ended. kLeaseMs from now on, D has to want the pages.
  void on_offer_end(const TransferId& id, const Status& status, int64_t now_ms);

  // The server is to end: no new transfer begins, and those that are open go on.
  void drain() { drains_ = true; }
  // After each step of the scheduler: sends what is cached by now, ends what has waited too long.
  void step(int64_t now_ms);
  // Ends all, with this reason.
  void stop(const Status& status, int64_t now_ms);

  std::size_t open() const { return exports_.size(); }
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  struct Export {
    uint64_t number = 0;               // of its lease
    std::optional<uint64_t> job;       // that computes for it
    bool computing = false;            // the job or the request
    std::optional<wire::KvWant> want;  // none: an offer
    bool in_messages = false;          // its parts; a relay may have been why some were asked for again
    bool offered = false;
    std::vector<int32_t> tokens;  // of complete pages, once there is an offer
    std::string extra_key;
    std::optional<TransferPrefix> prefix;  // of the want, or of the offer
    std::optional<KvSender> sender;
    std::optional<wire::KvPart> part;  // with its bytes, not sent yet
    int32_t cached = 0;
    uint64_t seen_changes = 0;   // of the cache
    uint64_t seen_failures = 0;  // of steps
    int64_t last_seen_ms = 0;
    std::optional<Span> span;  // of a want that is traced
    uint64_t parts = 0, bytes = 0;
  };
  using Exports = std::map<TransferId, Export>;

  Status check(const wire::KvWant& want) const;
  Status match(const Export& open, const wire::KvWant& want) const;
  void begin(Export& open, const TransferId& id);
  void refuse(const TransferId& id, const std::string& reply_to, const Status& status);
  void fail(Exports::iterator it, const Status& status, int64_t now_ms);
  void resend_in_messages(Export& open, const TransferId& id, uint64_t parts);
  void erase(Exports::iterator it, const Status& why, int64_t now_ms);
  Status advance(Export& open, int64_t& budget);
  Status send_parts(Export& open, int64_t& budget);
  Status fill(const Export& open, wire::KvPart& part);
  bool expired(const Export& open, int64_t now_ms) const;

  TransferEnv& env_;
  const std::optional<PrefillJobs> jobs_;
  const int64_t layers_bytes_;
  const StageSpans spans_;
  Exports exports_;
  PartBuffers buffers_;
  std::map<uint64_t, TransferId> jobs_of_;  // job -> transfer
  TransferTombstones ended_;
  TransferCounters counters_;
  struct Refusal {
    std::string reply_to;
    wire::Message end;
  };
  std::deque<Refusal> refusals_;  // not sent yet: the connection is being made
  std::size_t early_ = 0;         // wants without an offer
  std::set<std::string> noted_;   // endpoints that asked again, and were logged; at most kMaxEndpoints
  bool drains_ = false;
  uint64_t next_ = 1;  // export or job
};

}  // namespace millrace::transfer
