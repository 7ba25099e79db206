// PromptPages: fetches KV pages of a prompt before the scheduler gets the request: from the folder of --kv-disk-dir,
// then from another server. This is the last thing that a request waits for. Pages that do not come are computed.
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "scheduler/scheduler.h"
#include "stages/generating/generate_state.h"
#include "stages/kv_disk/saved_prefixes.h"
#include "stages/transfer/transfer_service.h"

namespace millrace {

class PromptPages {
 public:
  // Either may be null. The scheduler, whose pages have `page_size` tokens, outlives it.
  PromptPages(Scheduler& scheduler, int32_t page_size, std::unique_ptr<transfer::TransferService> transfers,
              std::unique_ptr<kv_disk::SavedPrefixes> saved)
      : scheduler_(scheduler), page_size_(page_size), transfers_(std::move(transfers)), saved_(std::move(saved)) {}

  // A request that begins now.
  struct Begun {
    PreparingState request;
    int32_t transferred_tokens = 0;            // that another server gave
    Boxed<wire::KvTransferred> transfer = {};  // of one that waited for them
    Status status{};                           // else it is refused
  };
  // nullopt: it waits, and step() will give it. kInvalidArgument: its fields of transfers are wrong.
  Result<std::optional<Begun>> begin(PreparingState next, int64_t now_ms);
  // It was aborted, whether it waits or not.
  void drop(ReqId request, int64_t now_ms);
  // All that wait: their pages are not fetched any more. on_end() follows for each.
  std::vector<PreparingState> take_all(int64_t now_ms);
  // It has ended: the server that waits for its pages is notified.
  void on_end(ReqId request, const Status& status, int64_t now_ms);

  // Messages of other servers; before a step of the scheduler.
  void receive(int64_t now_ms) {
    if (transfers_) transfers_->receive(0, now_ms);
  }
  // After it. Requests whose pages have come, or will not come, and those whose time is over.
  std::vector<Begun> step(int64_t now_ms);

  // Layers of the batch that is computed may be wanted: step again soon, also while it computes.
  bool exports() const { return transfers_ && transfers_->exports().open() > 0; }
  // When to step again at the latest, in ms; nullopt: it does not matter.
  std::optional<int> due() const;
  // The waiting requests, for the state that operators read.
  void describe(std::vector<PreparingRequest>& out, int64_t now_ms) const;
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  using Waiting = std::unordered_map<ReqId, PreparingState>;

  Status offer(const wire::TokenizedRequest& request, int64_t now_ms);
  Result<std::optional<Begun>> ask_server(PreparingState next, int64_t now_ms);
  static std::vector<ReqId> late(const Waiting& waiting, int64_t now_ms);

  Scheduler& scheduler_;
  const int32_t page_size_;
  const std::unique_ptr<transfer::TransferService> transfers_;
  const std::unique_ptr<kv_disk::SavedPrefixes> saved_;
  Waiting restoring_;                             // from the folder
  Waiting fetching_;                              // from another server
  std::unordered_map<ReqId, TransferId> offers_;  // of requests that compute for another server
};

}  // namespace millrace
