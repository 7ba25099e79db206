// What a link does on the device, step by step; each step ends when poll() of the communicator reports its completion.
#include "base/clock.h"
#include "relay/nccl/nccl_channel.h"

namespace millrace::nccl {

using namespace session;  // NOLINT: this folder is a channel of the session

Status NcclChannel::join(Pair& pair, const UniqueId& id, int rank) {
  ASSIGN_OR_RETURN(pair.communicator, Communicator::open(api_, device_));
  return pair.communicator->join(id, rank);
}

bool NcclChannel::poll() {
  bool any = false;
  for (auto& [link, pair] : pairs_) {
    if (const Status status = progress(pair, any); !status.ok()) broken_.emplace_back(pair.link, status);
  }
  close_broken();
  return any;
}

// One operation at a time on a link, so a step's completion always belongs to the frame in `out` or to the first of
// `receives`. After a step without a successor the next frame is begun in the same call.
Status NcclChannel::progress(Pair& pair, bool& any) {
  if (pair.communicator == nullptr) return ok_status();
  if (pair.step != Step::kIdle) {
    ASSIGN_OR_RETURN(const bool over, pair.communicator->poll());
    if (!over) return ok_status();
    any = true;
    switch (std::exchange(pair.step, Step::kIdle)) {
      case Step::kJoining:
        pair.link->patience_ms = 0;
        break;
      case Step::kGathering:
        return send(pair, pair.communicator->staging());
      case Step::kSending:
        pair.out = {};
        break;
      case Step::kReceiving:
        return scatter(pair);
      case Step::kScattering:
        finish_receive(pair, ok_status());
        break;
      case Step::kIdle:
        break;
    }
  }
  return pair.writes ? start_send(pair) : start_receive(pair);
}

// ---- the writer's end -----------------------------------------------------------------------------------------------

Status NcclChannel::start_send(Pair& pair) {
  if (!core_.writer.next_data(*pair.link, pair.out)) return ok_status();
  pair.due_ms = monotonic_ms() + kFrameMs;
  const Layout& layout = pair.out.put->layout;
  const uint64_t at = pair.out.header.offset;
  const std::vector<Layout::Slice> slices = layout.slices(at, at + pair.out.header.length);
  const std::vector<SharedBytes>& parts = pair.out.put->request->parts;
  if (slices.empty()) return send(pair, nullptr);
  // A part that stands alone is a frame by itself: no copy. Its memory stays by the hold in `out`.
  if (layout.alone(slices.front().part)) {
    return send(pair, parts[slices.front().part].data() + slices.front().offset);
  }
  CHECK(pair.out.header.length <= kStagingBytes);
  std::byte* to = pair.communicator->staging();
  for (const Layout::Slice& slice : slices) {
    RETURN_IF_ERROR(pair.communicator->copy(to, parts[slice.part].data() + slice.offset, slice.size));
    to += slice.size;
  }
  pair.step = Step::kGathering;
  return pair.communicator->finish_copies();
}

Status NcclChannel::send(Pair& pair, const std::byte* from) {
  Header grant = pair.out.header;
  grant.type = FrameType::kGrant;
  grant.flags = 0;
  // A GRANT has the range in offset and extra, and no payload: a DATA header's length would be taken for one.
  grant.extra = std::exchange(grant.length, 0);
  // Before the send is posted: it ends when the reader has posted its receive, which the GRANT makes it do.
  RETURN_IF_ERROR(pair.link->send(grant));
  if (grant.extra == 0) {  // a put without bytes
    pair.out = {};
    return ok_status();
  }
  pair.step = Step::kSending;
  return pair.communicator->send(from, grant.extra);
}

// ---- the reader's end -----------------------------------------------------------------------------------------------

Status NcclChannel::fetch(Link& link, const Header& header, std::span<const std::byte>, const Fetch& fetch) {
  Pair& pair = pairs_.at(&link);
  if (header.extra > kStagingBytes) {
    return internal_error("the writer announces a frame of {} bytes; wanted at most {}", header.extra, kStagingBytes);
  }
  // Also of a get that is over: the writer has posted its send, and without the receive both devices would wait.
  pair.receives.push_back({fetch, header.extra});
  return ok_status();  // flush() starts it
}

Status NcclChannel::start_receive(Pair& pair) {
  while (!pair.receives.empty() && pair.receives.front().size == 0) finish_receive(pair, ok_status());
  if (pair.receives.empty()) return ok_status();
  const auto& [fetch, size] = pair.receives.front();
  std::byte* to = pair.communicator->staging();
  // Straight into the part only where the memory is the relay's own. A caller's memory is his again after `done`, which
  // an operation on the device cannot be stopped for.
  if (fetch.layout != nullptr && !fetch.landing->direct) {
    const Layout::Slice first = fetch.layout->slices(fetch.offset, fetch.offset + fetch.size).front();
    if (fetch.layout->alone(first.part)) {
      to = const_cast<std::byte*>(fetch.landing->parts[first.part].data()) + first.offset;
    }
  }
  pair.step = Step::kReceiving;
  pair.due_ms = monotonic_ms() + kFrameMs;
  return pair.communicator->receive(to, size);
}

// From the staging buffer to where the bytes belong. A get into the caller's memory stays pinned until that is over.
Status NcclChannel::scatter(Pair& pair) {
  const auto& [fetch, size] = pair.receives.front();
  const auto slices =
      fetch.layout == nullptr ? std::vector<Layout::Slice>() : fetch.layout->slices(fetch.offset, fetch.offset + size);
  const bool received = slices.empty() || (!fetch.landing->direct && fetch.layout->alone(slices.front().part));
  if (!received && fetch.landing->direct) {
    pair.pinned = core_.table.pin(fetch.get);
    if (!pair.pinned) {
      finish_receive(pair, Status(StatusCode::kCancelled, "the get is over"));
      return ok_status();
    }
  }
  if (received) {
    finish_receive(pair, ok_status());
    return ok_status();
  }
  const std::byte* from = pair.communicator->staging();
  for (const Layout::Slice& slice : slices) {
    auto* to = const_cast<std::byte*>(fetch.landing->parts[slice.part].data()) + slice.offset;
    RETURN_IF_ERROR(pair.communicator->copy(to, from, slice.size));
    from += slice.size;
  }
  pair.step = Step::kScattering;
  pair.due_ms = monotonic_ms() + kFrameMs;
  return pair.communicator->finish_copies();
}

void NcclChannel::finish_receive(Pair& pair, const Status& status) {
  CHECK(!pair.receives.empty());
  const Receive receive = pair.receives.front();
  pair.receives.pop_front();
  const bool pinned = std::exchange(pair.pinned, false);
  // First the report, then the unpin: an end that waited for the pin finds the get as fetched() has left it.
  if (receive.fetch.layout != nullptr) core_.reader.fetched(receive.fetch, status);
  if (pinned) core_.table.unpin(receive.fetch.get);
}

}  // namespace millrace::nccl
