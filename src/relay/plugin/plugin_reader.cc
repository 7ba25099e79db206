// The reader's side of the plugin relay: asks, reads what was granted, checks it, hands it over, lets go.
#include <cstring>

#include "relay/plugin/plugin_core.h"

namespace millrace {

void PluginCore::begin_gets(int64_t now) {
  std::deque<PluginGet> fresh;
  {
    std::lock_guard lock(mutex);
    fresh.swap(new_gets);
  }
  for (PluginGet& get : fresh) {
    const RelayOp op = get.op;
    const std::string& blob_there = get.descriptor.tail;
    PluginPeer* peer = nullptr;
    uint64_t handle = 0;
    int code = MILLRACE_RELAY_OK;
    if (const auto at = peers.find(get.descriptor.instance.random); at != peers.end()) {
      peer = &at->second;
      // Nothing was open, so nothing was said: its silence begins now.
      bool open = false;
      for (const auto& [other, state] : gets) open = open || state.descriptor.instance == get.descriptor.instance;
      if (!open) peer->heard_ms = now;
    } else if ((code = plugin->connect(engine, blob_there.data(), blob_there.size(), &handle)) == MILLRACE_RELAY_OK) {
      peers[get.descriptor.instance.random] = {handle, now};
    }
    if (code != MILLRACE_RELAY_OK) {
      const bool bad = code == MILLRACE_RELAY_INVALID;
      (void)table.end(op, bad ? invalid_argument("the descriptor does not say how its relay is reached")
                              : Status(StatusCode::kUnavailable, "the descriptor's relay cannot be reached"));
      continue;
    }
    std::optional<uint64_t> slot;
    {
      std::lock_guard lock(mutex);
      slot = receive_pool.take(get.layout.span);
    }
    if (!slot) {
      (void)table.end(op,
                      error(StatusCode::kResourceExhausted, "no {} bytes are left to receive into", get.layout.span));
      continue;
    }
    get.slot = *slot;
    get.again_ms = now;
    gets.emplace(op.value, std::move(get));
  }
}

void PluginCore::on_grant(const PluginMessage& grant, int64_t now) {
  const auto at = gets.find(grant.get);
  if (at == gets.end()) {
    // Of a get that is over, whose release was lost.
    return send(grant.from,
                {.kind = PluginKind::kRelease, .get = grant.get, .put = grant.put, .generation = grant.generation});
  }
  PluginGet& get = at->second;
  const Descriptor& d = get.descriptor;
  if (d.instance.random != grant.from || d.op.value != grant.put || d.generation != grant.generation) {
    return table.count_bad_frame();
  }
  if (get.reading) return send(grant.from, {.kind = PluginKind::kPong});  // it only wants to know
  int code = MILLRACE_RELAY_INVALID;
  if (grant.span == get.layout.span) {
    code = get.layout.span == 0
               ? MILLRACE_RELAY_OK
               : plugin->read(engine, peers.at(grant.from).handle, grant.offset, get.slot, grant.span, &get.transfer);
  }
  if (code != MILLRACE_RELAY_OK) {
    (void)table.end(get.op, code == MILLRACE_RELAY_GONE
                                ? Status(StatusCode::kUnavailable, "the writer cannot be reached any more")
                                : internal_error("the plugin cannot read what was granted: code {}", code));
    return;  // work_on() sees that it has ended
  }
  get.reading = true;
  get.again_ms = now + options.silent_ms / 4;
  // What the bytes must sum to; the descriptor's copy is ours to use for it.
  get.descriptor.sizes_hash = grant.checksum;
}

void PluginCore::on_refuse(const PluginMessage& refusal) {
  const auto at = gets.find(refusal.get);
  if (at == gets.end() || at->second.reading || at->second.descriptor.instance.random != refusal.from) return;
  const PluginGet get = std::move(at->second);
  gets.erase(at);
  drop(get, false, 0);
  (void)table.end(get.op, refusal.code == StatusCode::kUnavailable
                              ? Status(StatusCode::kUnavailable, "the writer's relay was closed")
                              : invalid_argument("the descriptor's put is over or is another one"));
}

// The slot is free, and where the writer may know of the get, it will hear that it is over.
void PluginCore::drop(const PluginGet& get, bool release, int64_t now) {
  {
    std::lock_guard lock(mutex);
    receive_pool.release(get.slot);
  }
  if (!release) return;
  PluginMessage message{.kind = PluginKind::kRelease,
                        .to = get.descriptor.instance.random,
                        .get = get.op.value,
                        .put = get.descriptor.op.value,
                        .generation = get.descriptor.generation};
  releases[get.op.value] = {std::move(message), now, now};
}

bool PluginCore::work_on_gets(int64_t now) {
  for (auto at = gets.begin(); at != gets.end();) {
    if (!work_on(at->second, now)) {
      ++at;
      continue;
    }
    drop(at->second, true, now);
    at = gets.erase(at);
  }
  return !gets.empty();
}

bool PluginCore::work_on(PluginGet& get, int64_t now) {
  const bool ended = table.get(get.op) == nullptr;
  const PluginInstance& writer = get.descriptor.instance.random;
  if (get.reading) {
    if (ended && !get.abandoned && get.layout.span > 0) {
      plugin->abandon(engine, get.transfer);
      get.abandoned = true;
    }
    const int code = get.layout.span == 0 ? MILLRACE_RELAY_OK : plugin->poll(engine, get.transfer);
    if (code == MILLRACE_RELAY_OK && !ended) hand_over(get);
    if (code < 0) {
      (void)table.end(get.op, code == MILLRACE_RELAY_GONE
                                  ? Status(StatusCode::kUnavailable, "the writer died during the read")
                                  : internal_error("the plugin's read failed: code {}", code));
    }
    // While the plugin may still write, the slot is nobody else's.
    if (code != MILLRACE_RELAY_PENDING) return true;
  }
  if (ended) return !get.reading;
  if (silent(writer, now)) {
    (void)table.end(get.op, Status(StatusCode::kUnavailable, "the writer says nothing any more"));
    return !get.reading;
  }
  if (now >= get.again_ms) {
    PluginMessage message{.kind = get.reading ? PluginKind::kPing : PluginKind::kAsk, .get = get.op.value};
    if (!get.reading) {
      message.put = get.descriptor.op.value;
      message.generation = get.descriptor.generation;
      message.sizes_hash = get.descriptor.sizes_hash;
      message.blob = blob;
    }
    send(writer, std::move(message));
    get.again_ms = now + (get.reading ? options.silent_ms / 4 : std::min(kPluginAskAgainMs, options.silent_ms / 4));
  }
  return false;
}

void PluginCore::hand_over(PluginGet& get) {
  const std::byte* base = at(get.slot);
  if (parts_checksum(base, get.layout, get.sizes, get.descriptor.generation) != get.descriptor.sizes_hash) {
    (void)table.end(get.op, internal_error("the checksum of the received bytes is wrong"));
    return;
  }
  if (!table.pin(get.op)) return;
  const std::shared_ptr<const GetRequest> request = table.get(get.op);
  std::vector<SharedBytes> parts;
  for (std::size_t i = 0; i < get.sizes.size(); ++i) {
    const std::byte* from = base + get.layout.offsets[i];
    if (!request->destination.empty()) {
      const std::span<std::byte> to = request->destination[i];
      if (!to.empty()) std::memcpy(to.data(), from, to.size());
      parts.emplace_back(nullptr, to.data(), to.size());
      continue;
    }
    Buffer buffer(get.sizes[i]);
    if (get.sizes[i] > 0) std::memcpy(buffer.data(), from, get.sizes[i]);
    parts.emplace_back(std::move(buffer));
  }
  if (request->destination.empty()) parts = table.lend(std::move(parts));
  (void)table.end_get(get.op, std::move(parts));
  table.unpin(get.op);
}

bool PluginCore::repeat_releases(int64_t now) {
  for (auto at = releases.begin(); at != releases.end();) {
    PluginRelease& release = at->second;
    // The writer that lives asks again by a grant, if it still waits.
    if (now - release.since_ms > options.silent_ms) {
      at = releases.erase(at);
      continue;
    }
    if (now >= release.again_ms) {
      send(release.message.to, release.message);
      release.again_ms = now + kPluginAskAgainMs;
    }
    ++at;
  }
  return !releases.empty();
}

}  // namespace millrace
