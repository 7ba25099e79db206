#include "collective/gloo_group.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "collective/gloo_mesh.h"
#include "collective/group_store.h"
#include "collective/limits.h"

namespace millrace::collective {

struct GlooGroup::Broadcast {
  uint64_t slot = 0;
  uint64_t bytes = 0;
  BroadcastTree tree;
  const ReceiveLimits& limits;
  const CancelSignal* cancel;

  // Every wait for a byte is one for progress.
  WaitLimit limit() const { return WaitLimit{limits.deadline, cancel}.at_most(limits.progress); }
};

GlooGroup::GlooGroup(int rank, std::vector<StreamSocket> sockets, std::shared_ptr<const CancelSignal> cancel)
    : rank_(rank), cancel_(std::move(cancel)), slice_(kSliceBytes) {
  CHECK(rank_ >= 0 && static_cast<std::size_t>(rank_) < sockets.size() &&
        !sockets[static_cast<std::size_t>(rank_)].open());
  pairs_.reserve(sockets.size());
  for (std::size_t i = 0; i < sockets.size(); ++i) pairs_.emplace_back(static_cast<int>(i), std::move(sockets[i]));
}

Status GlooGroup::receive_broadcast(int root, uint64_t bytes, const ReceiveLimits& limits, SliceConsumer on_slice) {
  CHECK(root != rank_ && root >= 0 && root < static_cast<int>(pairs_.size()));
  RETURN_IF_ERROR(broken_);
  const BroadcastTree tree = broadcast_tree(rank_, static_cast<int>(pairs_.size()), root);
  // Counted whatever comes of it: the trainer counts its call, too. An error of the connection ends the group, so that
  // the counts never differ unnoticed.
  const Broadcast broadcast{broadcast_slot(collectives_++), bytes, tree, limits, cancel_.get()};
  Status refused;
  // `refused` is the caller's error: the bytes are read to the end all the same, and the group stays good.
  broken_ = take_part(broadcast, on_slice, refused);
  return broken_.ok() ? refused : broken_;
}

Status GlooGroup::take_part(const Broadcast& b, SliceConsumer on_slice, Status& refused) {
  // gloo receives everything before it sends anything on. To hold no more than a slice, this rank asks its parent for
  // the bytes once all its children have asked for them. A child asks whether or not it has an announcement, so none
  // waits.
  for (const int child : b.tree.children) RETURN_IF_ERROR(pair(child).send(send_ready(b.slot, b.bytes), b.limit()));
  for (const int child : b.tree.children) RETURN_IF_ERROR(pair(child).await_receiver(b.slot, b.bytes, b.limit()));
  CHECK(b.tree.parent >= 0);  // the root is another rank
  GlooPair& parent = pair(b.tree.parent);
  RETURN_IF_ERROR(parent.send(receive_ready(b.slot, b.bytes), b.limit()));
  RETURN_IF_ERROR(parent.await_data(b.slot, b.bytes, b.limit()));
  for (const int child : b.tree.children) RETURN_IF_ERROR(pair(child).send(data_message(b.slot, b.bytes), b.limit()));
  return stream(b, on_slice, refused);
}

Status GlooGroup::stream(const Broadcast& b, SliceConsumer on_slice, Status& refused) {
  StreamSocket& parent = pair(b.tree.parent).socket();
  for (uint64_t left = b.bytes; left > 0;) {
    const std::size_t most = std::min<uint64_t>(left, slice_.size());
    const Result<std::size_t> count = parent.read_some(std::span(slice_).first(most), b.limit());
    if (!count.ok()) {
      return count.status().with_prefix(fmt::format("rank {}, {}, {} of {} bytes received", b.tree.parent,
                                                    describe_slot(b.slot), b.bytes - left, b.bytes));
    }
    const std::span<const std::byte> slice = std::span(slice_).first(*count);
    for (const int child : b.tree.children) RETURN_IF_ERROR(pair(child).socket().write_all(slice, b.limit()));
    // Behind the children's writes: a slow consumer holds up this rank only.
    if (refused.ok()) refused = on_slice(slice);
    left -= slice.size();
  }
  return ok_status();
}

Status GlooGroup::await_loss(Clock::time_point deadline) {
  RETURN_IF_ERROR(broken_);
  std::vector<int> fds;
  for (GlooPair& pair : pairs_) fds.push_back(pair.socket().fd());
  // Not POLLIN: announcements of the next broadcast may be there already, and stay for it.
  RETURN_IF_ERROR(wait_for_any(fds, POLLRDHUP, {deadline, cancel_.get()}));
  return broken_ = error(StatusCode::kUnavailable, "a rank of the group closed its connection");
}

Result<std::unique_ptr<ProcessGroup>> join_gloo_group(const GroupOptions& options,
                                                      std::shared_ptr<const CancelSignal> cancel,
                                                      Clock::time_point deadline) {
  RETURN_IF_ERROR(check_group_options(options));
  const WaitLimit limit{deadline, cancel.get()};
  ASSIGN_OR_RETURN(GroupStore store, open_group_store(options, limit));
  ASSIGN_OR_RETURN(std::vector<StreamSocket> sockets,
                   connect_mesh(store.client, {store.allowed, options.rank, options.world_size, options.name}, limit));
  return std::unique_ptr<ProcessGroup>(
      std::make_unique<GlooGroup>(options.rank, std::move(sockets), std::move(cancel)));
}

}  // namespace millrace::collective
