// TransferLinks: the sockets over which one server's KV pages come and go, and the servers at the other end. In a
// pipeline these are the replicas of another stage, as the last table of peers has them (TransferPeers); else each
// request names the other server.
//
// Owner: the TransferService that is made of it. Thread safety: TransferPeers from any thread; the rest as the mailbox.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "control/mailbox.h"
#include "stages/loop/relay_choice.h"
#include "stages/stage_spans.h"
#include "stages/transfer/limits.h"

namespace millrace::transfer {

// The replicas of the stage at the other end, and where each is now.
class TransferPeers {
 public:
  struct Replica {
    std::string endpoint;      // empty: it is not there
    uint64_t incarnation = 0;  // of its process, which has the pages
    friend bool operator==(const Replica&, const Replica&) = default;
  };

  // `compute`: they compute prompts for this server; else this one computes theirs.
  TransferPeers(std::size_t replicas, bool compute) : compute_(compute), replicas_(replicas) {}

  bool compute() const { return compute_; }
  std::size_t count() const { return replicas_.size(); }
  // Moves with each change; 0: there was none.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  std::vector<Replica> replicas() const {
    const std::lock_guard lock(mutex_);
    return replicas_;
  }
  void set(std::vector<Replica> replicas) {
    const std::lock_guard lock(mutex_);
    if (replicas == replicas_) return;
    replicas_ = std::move(replicas);
    version_.fetch_add(1, std::memory_order_release);
  }

 private:
  const bool compute_;
  mutable std::mutex mutex_;
  std::vector<Replica> replicas_;  // guarded by mutex_
  std::atomic<uint64_t> version_{0};
};

struct TransferLinks {
  wire::Peer self;      // this process, as relays reach it
  loop::Relays relays;  // for the bytes of pages; none: they travel in messages
  std::string relay;    // the backend that the pipeline asks for; empty or "auto": the best
  std::unique_ptr<Inbox> inbox;
  std::string endpoint;  // of it, as others reach it
  // To another server; kInvalidArgument for an endpoint that may not be connected to.
  std::function<Result<std::shared_ptr<Outbox>>(const std::string& endpoint)> connect;
  std::shared_ptr<const TransferPeers> peers;  // null: requests name the other server
  int32_t min_tokens = kMinRemoteTokens;
  StageSpans spans;  // of what this process does for others that are traced
};

}  // namespace millrace::transfer

namespace millrace {

// The sockets for KV pages, or features of media, of a worker that makes them for another stage, or of that one; once.
using OpenTransferLinks = std::function<Result<transfer::TransferLinks>()>;

// The same, whose requests are traced by `spans`.
OpenTransferLinks with_spans(OpenTransferLinks open, StageSpans spans);

}  // namespace millrace
