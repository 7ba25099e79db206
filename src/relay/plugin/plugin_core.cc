#include "relay/plugin/plugin_core.h"
#include "base/xxh3.h"

#include <algorithm>
#include <chrono>

namespace millrace {

PartLayout lay_out(const std::vector<std::size_t>& sizes) {
  PartLayout layout;
  for (const std::size_t size : sizes) {
    layout.offsets.push_back(layout.span);
    layout.span += session::aligned(size);
  }
  return layout;
}

uint64_t parts_checksum(const std::byte* base, const PartLayout& layout, const std::vector<std::size_t>& sizes,
                        uint64_t generation) {
  uint64_t sum = generation;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    sum = XXH3_64bits_withSeed(base + layout.offsets[i], sizes[i], sum + 1);
  return sum;
}

bool PluginPut::somebody_reads() const {
  return std::any_of(claims.begin(), claims.end(), [](const auto& claim) { return !claim.second.released; });
}
bool PluginPut::all_let_go() const { return claims.size() >= static_cast<std::size_t>(readers) && !somebody_reads(); }

namespace {
uint64_t half_of(const RelayOptions& options) { return (options.pool_bytes + kPluginSlackBytes + 4095) / 4096 * 4096; }
}  // namespace

PluginCore::PluginCore(const millrace_relay_plugin* p, const RelayOptions& o)
    : plugin(p),
      options(o),
      name(p->name),
      id(make_instance_id()),
      send_pool(0, half_of(o)),
      receive_pool(half_of(o), half_of(o)),
      table(o, [this](RelayOp op, bool is_put, const Status&) { return take_down(op, is_put); }) {}

bool PluginCore::take_down(RelayOp op, bool is_put) {
  if (!is_put) return true;  // the engine thread sees that it has ended
  std::lock_guard lock(mutex);
  const auto at = puts.find(op.value);
  if (at == puts.end()) return true;
  at->second.ended = true;
  if (at->second.somebody_reads()) return false;
  send_pool.release(at->second.offset);
  puts.erase(at);
  return true;
}

void PluginCore::send(const PluginInstance& to, PluginMessage message) {
  const auto peer = peers.find(to);
  if (peer == peers.end()) return;
  message.from = id.random;
  message.to = to;
  const std::string bytes = encode_plugin_message(message);
  // What is not taken now is said again later: every message is an answer or is repeated.
  (void)plugin->send(engine, peer->second.handle, bytes.data(), bytes.size());
}

PluginPeer* PluginCore::reach(const PluginInstance& instance, const std::string& peer_blob, int64_t now) {
  if (const auto at = peers.find(instance); at != peers.end()) return &at->second;
  PluginPeer peer{.handle = 0, .heard_ms = now};
  if (plugin->connect(engine, peer_blob.data(), peer_blob.size(), &peer.handle) != MILLRACE_RELAY_OK) return nullptr;
  return &(peers[instance] = peer);
}

bool PluginCore::silent(const PluginInstance& instance, int64_t now) const {
  const auto at = peers.find(instance);
  return at == peers.end() || now - at->second.heard_ms > options.silent_ms;
}

void PluginCore::forget_idle_peers(int64_t now) {
  for (auto at = peers.begin(); at != peers.end();) {
    const PluginInstance& instance = at->first;
    bool used = now - at->second.heard_ms < kPluginIdlePeerMs;
    for (const auto& [op, get] : gets) used = used || get.descriptor.instance.random == instance;
    for (const auto& [op, release] : releases) used = used || release.message.to == instance;
    {
      std::lock_guard lock(mutex);
      for (const auto& [op, put] : puts) {
        for (const auto& [reader, claim] : put.claims) used = used || (reader.first == instance && !claim.released);
      }
    }
    if (used) {
      ++at;
      continue;
    }
    plugin->disconnect(engine, at->second.handle);
    at = peers.erase(at);
  }
}

bool PluginCore::receive_messages(int64_t now) {
  std::string bytes(MILLRACE_RELAY_MAX_MESSAGE, '\0');
  for (int i = 0; i < kPluginMessagesAtOnce; ++i) {
    std::size_t size = 0;
    if (plugin->receive(engine, bytes.data(), bytes.size(), &size) != MILLRACE_RELAY_OK) return i > 0;
    const Result<PluginMessage> message = decode_plugin_message(std::string_view(bytes).substr(0, size));
    if (!message.ok() || message->to != id.random) {
      table.count_bad_frame();
      continue;
    }
    on_message(*message, now);
  }
  return true;
}

void PluginCore::on_message(const PluginMessage& message, int64_t now) {
  if (const auto peer = peers.find(message.from); peer != peers.end()) peer->second.heard_ms = now;
  switch (message.kind) {
    case PluginKind::kAsk:
      return on_ask(message, now);
    case PluginKind::kGrant:
      return on_grant(message, now);
    case PluginKind::kRefuse:
      return on_refuse(message);
    case PluginKind::kRelease:
      on_release(message);
      return send(message.from, {.kind = PluginKind::kReleased, .get = message.get});
    case PluginKind::kReleased:
      if (const auto at = releases.find(message.get); at != releases.end() && at->second.message.to == message.from) {
        releases.erase(at);
      }
      return;
    case PluginKind::kPing:
      return send(message.from, {.kind = PluginKind::kPong});
    case PluginKind::kPong:
      return;
  }
}

void PluginCore::run() {
  int64_t farewell_ms = -1, next_sweep_ms = 0;
  while (true) {
    const int64_t now = relay_now_ms();
    bool stop = false, has_puts = false;
    {
      std::lock_guard lock(mutex);
      stop = stopping;
      has_puts = !puts.empty();
    }
    if (stop && farewell_ms < 0) farewell_ms = now + kPluginFarewellMs;
    begin_gets(now);
    bool active = receive_messages(now);
    active |= watch_claims(now);
    active |= work_on_gets(now);
    active |= repeat_releases(now);
    if (now >= next_sweep_ms) {
      forget_idle_peers(now);
      next_sweep_ms = now + 1'000;
    }
    if (stop && ((gets.empty() && releases.empty()) || now >= farewell_ms)) break;
    std::unique_lock lock(mutex);
    const auto wait = active ? std::chrono::microseconds(50) : std::chrono::microseconds(has_puts ? 500 : 5'000);
    wake.wait_for(lock, wait, [this] { return !new_gets.empty(); });
  }
  {
    std::unique_lock lock(in_use);  // nobody copies into it any more
    plugin->close(engine);
  }
  std::map<uint64_t, PluginPut> gone;
  {
    std::lock_guard lock(mutex);
    gone.swap(puts);
  }
  // Whoever still reads finds nothing any more: the memory is not there.
  for (const auto& [op, put] : gone) table.let_go(RelayOp{op});
  std::lock_guard lock(mutex);
  stopped = true;
  wake.notify_all();
}

}  // namespace millrace
