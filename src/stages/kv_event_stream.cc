#include "stages/kv_event_stream.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "wire/msgpack.h"

namespace millrace {
namespace {

void append(wire::MsgpackWriter& out, const KvEvent& event) {
  const auto hashes = [&] {
    out.array(event.hashes.size());
    for (int64_t hash : event.hashes) out.integer(hash);
  };
  switch (event.kind) {
    case KvEventKind::kStored:
      out.array(7);
      out.string("BlockStored");
      hashes();
      event.parent ? out.integer(*event.parent) : out.nil();
      out.array(event.tokens.size());
      for (int32_t token : event.tokens) out.integer(token);
      out.integer(event.block_size);
      out.nil();
      out.string(kv_medium_name(event.medium));
      return;
    case KvEventKind::kRemoved:
      out.array(3);
      out.string("BlockRemoved");
      hashes();
      out.string(kv_medium_name(event.medium));
      return;
    case KvEventKind::kCleared:
      out.array(1);
      out.string("AllBlocksCleared");
      return;
  }
}

}  // namespace

std::string encode_kv_events(const KvEvent* events, std::size_t count, double timestamp, uint32_t dp_rank) {
  wire::MsgpackWriter out;
  out.array(4);
  out.number(timestamp);
  out.array(count);
  for (std::size_t i = 0; i < count; ++i) append(out, events[i]);
  out.unsigned_integer(dp_rank);
  out.unsigned_integer(count > 0 ? events[0].weight_version : 0);
  return out.take();
}

void KvEventStream::publish(const KvEvents& all) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::vector<KvEvent>& events = all.events;
  // Not at the start: the listeners of the process before need a while to connect again, and would miss it.
  if (!events.empty() && !std::exchange(begun_, true)) {
    const KvEvent cleared{.kind = KvEventKind::kCleared, .weight_version = events.front().weight_version};
    socket_->publish(kKvTopic, encode_kv_events(&cleared, 1, now, dp_rank_));
  }
  for (std::size_t begin = 0; begin < events.size();) {
    std::size_t end = begin + 1;
    while (end < events.size() && end - begin < kMaxEventsPerMessage &&
           events[end].weight_version == events[begin].weight_version) {
      ++end;
    }
    socket_->publish(kKvTopic, encode_kv_events(events.data() + begin, end - begin, now, dp_rank_));
    published_ += end - begin;
    begin = end;
  }
  if (all.dropped == 0) return;
  dropped_ += all.dropped;
  socket_->skip();
}

void KvEventStream::describe(std::vector<wire::Metric>& metrics) const {
  metrics.push_back({"kv_events_published_total", static_cast<double>(published_)});
  metrics.push_back({"kv_events_dropped_total", static_cast<double>(dropped_)});
}

}  // namespace millrace
