// GlooGroup: a ProcessGroup over gloo's TCP transport: one connection to each other rank, broadcasts along a binomial
// tree.
//
// Owner: the thread that joined. Thread safety: process_group.h.
#pragma once

#include <memory>
#include <vector>

#include "collective/gloo_pair.h"
#include "collective/process_group.h"

namespace millrace::collective {

class GlooGroup final : public ProcessGroup {
 public:
  // `sockets`: by rank, that of `rank` not open.
  GlooGroup(int rank, std::vector<StreamSocket> sockets, std::shared_ptr<const CancelSignal> cancel);

  Status receive_broadcast(int root, uint64_t bytes, const ReceiveLimits& limits, SliceConsumer on_slice) override;
  Status await_loss(Clock::time_point deadline) override;

 private:
  struct Broadcast;
  GlooPair& pair(int rank) { return pairs_[static_cast<std::size_t>(rank)]; }
  Status take_part(const Broadcast& broadcast, SliceConsumer on_slice, Status& refused);
  Status stream(const Broadcast& broadcast, SliceConsumer on_slice, Status& refused);

  const int rank_;
  std::vector<GlooPair> pairs_;
  std::shared_ptr<const CancelSignal> cancel_;
  std::vector<std::byte> slice_;
  uint32_t collectives_ = 0;  // so far: gloo numbers them, and both ends must agree
  Status broken_;             // what ended the group
};

}  // namespace millrace::collective
