// The writer's side of the plugin relay: who may read, who still reads, who has died over it.
#include "relay/plugin/plugin_core.h"

namespace millrace {
namespace {

std::string address_of(const std::string& name, const PluginInstance& instance) {
  InstanceId id;
  id.random = instance;
  return name + ":" + to_hex(id);
}

PluginMessage grant_of(uint64_t op, const PluginPut& put, uint64_t get) {
  return {.kind = PluginKind::kGrant,
          .get = get,
          .put = op,
          .generation = put.generation,
          .offset = put.offset,
          .span = put.span,
          .checksum = put.checksum};
}

}  // namespace

void PluginCore::on_ask(const PluginMessage& ask, int64_t now) {
  if (!reach(ask.from, ask.blob, now)) return table.count_bad_frame();
  PluginMessage answer{.kind = PluginKind::kRefuse, .code = StatusCode::kInvalidArgument, .get = ask.get};
  {
    std::lock_guard lock(mutex);
    const auto at = puts.find(ask.put);
    if (stopping) {
      answer.code = StatusCode::kUnavailable;
    } else if (at != puts.end() && !at->second.ended && at->second.generation == ask.generation &&
               at->second.sizes_hash == ask.sizes_hash &&
               (at->second.destination.empty() || at->second.destination == address_of(name, ask.from))) {
      PluginPut& put = at->second;
      const auto claim = put.claims.find({ask.from, ask.get});
      if (claim != put.claims.end() && claim->second.released) return;  // a late repetition
      if (claim != put.claims.end() || put.claims.size() < static_cast<std::size_t>(put.readers)) {
        put.claims[{ask.from, ask.get}].grant_again_ms = now + options.silent_ms / 4;
        answer = grant_of(ask.put, put, ask.get);
      }
    }
  }
  send(ask.from, answer);
}

void PluginCore::on_release(const PluginMessage& release) {
  {
    std::lock_guard lock(mutex);
    const auto at = puts.find(release.put);
    if (at == puts.end() || at->second.generation != release.generation) return;
    PluginPut& put = at->second;
    const bool known = put.claims.contains({release.from, release.get});
    const bool may = put.destination.empty() || put.destination == address_of(name, release.from);
    // Also of a get that never came here: when its ask comes after all, it finds itself released.
    if (!known && (!may || put.claims.size() >= static_cast<std::size_t>(put.readers))) return;
    put.claims[{release.from, release.get}].released = true;
  }
  settle(release.put, ok_status());
}

void PluginCore::settle(uint64_t op, const Status& status) {
  bool let_go = false, over = false;
  {
    std::lock_guard lock(mutex);
    const auto at = puts.find(op);
    if (at == puts.end()) return;
    if (at->second.ended && !at->second.somebody_reads()) {
      let_go = true;
      send_pool.release(at->second.offset);
      puts.erase(at);
    } else if (!at->second.ended) {
      over = !status.ok() || at->second.all_let_go();
    }
  }
  if (let_go) table.let_go(RelayOp{op});
  if (over) (void)table.end_put(RelayOp{op}, status);
}

bool PluginCore::watch_claims(int64_t now) {
  std::vector<std::pair<PluginInstance, PluginMessage>> again;
  std::vector<uint64_t> widowed;
  bool active = false;
  {
    std::lock_guard lock(mutex);
    for (auto& [op, put] : puts) {
      bool dead = false;
      for (auto& [reader, claim] : put.claims) {
        if (claim.released) continue;
        active = true;
        if (silent(reader.first, now)) {
          claim.released = dead = true;
        } else if (now >= claim.grant_again_ms) {
          // Lost, perhaps; and whoever is alive answers.
          claim.grant_again_ms = now + options.silent_ms / 4;
          again.emplace_back(reader.first, grant_of(op, put, reader.second));
        }
      }
      if (dead) widowed.push_back(op);
    }
  }
  for (const auto& [to, message] : again) send(to, message);
  for (const uint64_t op : widowed) settle(op, Status(StatusCode::kUnavailable, "a reader of the put has died"));
  return active;
}

}  // namespace millrace
