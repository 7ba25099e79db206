// MiniCoordinator: what a test needs of a coordinator: membership with leases, submits, results and chunks put together
// again, aborts until they are acknowledged. It is given the time and sends its messages through `send`.
//
// Thread safety: one thread; ends of gets may come on any.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "payload/inline_parts.h"
#include "payload/packing.h"
#include "relay/relay.h"
#include "stages/stage_spec.h"
#include "wire/messages.h"

namespace millrace::testing {

struct LoopOutcome {
  int ends = 0;
  Status status;
  std::map<std::string, Value> results;              // by terminal
  std::map<std::string, std::vector<Value>> chunks;  // by terminal, in order
};

class MiniCoordinator {
 public:
  using Send = std::function<void(const std::string& stage, uint32_t replica, wire::Message)>;
  MiniCoordinator(std::vector<StageSpec> stages, std::string entry, Relay& relay, std::string relay_name, Send send,
                  int64_t lease_ms = 2000)
      : lease_ms_(lease_ms),
        stages_(std::move(stages)),
        entry_(std::move(entry)),
        relay_(relay),
        relay_name_(std::move(relay_name)),
        send_(std::move(send)) {}

  wire::Peer self() const {
    wire::Peer peer;
    peer.relays = {{.relay = relay_name_, .address = {relay_.address()}}};
    return peer;
  }

  void submit(uint64_t id, const Value& inputs, std::vector<std::string> terminals, int64_t timeout_ms, int64_t now) {
    Live& live = live_[id];
    live.terminals = terminals;
    live.deadline_ms = now + timeout_ms;
    wire::Payload payload;
    payload.tree.bytes = lift(inputs).value().tree;
    wire::Submit submit{.id = {id},
                        .from = {.session = 1},
                        .payload = payload,
                        .terminals = std::move(terminals),
                        .timeout_ms = timeout_ms};
    for (const StageSpec& stage : stages_) {
      submit.route.push_back({.stage = stage.name, .replica = replica_of(id, stage.name)});
    }
    send_(entry_, replica_of(id, entry_), std::move(submit));
  }
  void cancel(uint64_t id) {
    if (live_.contains(id)) end(id, error(StatusCode::kCancelled, "cancelled"));
  }

  void handle(const wire::Message& message, int64_t now) {
    now_ = now;
    if (const auto* m = std::get_if<wire::Register>(&message)) return on_message(*m);
    if (const auto* m = std::get_if<wire::StageStatus>(&message)) return on_message(*m);
    if (const auto* m = std::get_if<wire::ChunkBatch>(&message)) {
      for (const wire::Chunk& chunk : m->chunks) on_chunk(m->from, chunk);
      return;
    }
    if (const auto* m = std::get_if<wire::AbortAck>(&message)) {
      const auto open = aborts_.find(m->id.value);
      if (open != aborts_.end() && fresh(m->from)) open->second.erase({m->from.stage, m->from.replica});
      if (open != aborts_.end() && open->second.empty()) aborts_.erase(open);
    }
  }

  void tick(int64_t now) {
    now_ = now;
    take_arrivals();
    std::vector<uint64_t> late;
    for (const auto& [id, live] : live_) {
      if (now >= live.deadline_ms) late.push_back(id);
    }
    for (const uint64_t id : late) end(id, error(StatusCode::kDeadline, "too late"));
    for (auto& [slot, member] : members_) {
      if (member.peer.up && now - member.last_seen_ms > lease_ms_) lose(slot);
    }
    if (now >= next_aborts_ms_) {
      next_aborts_ms_ = now + 200;
      for (const auto& [id, slots] : aborts_) {
        for (const auto& slot : slots) send_(slot.first, slot.second, wire::AbortRequest{.id = {id}});
      }
    }
    if (now >= next_table_ms_) send_table();
  }

  bool all_up(std::size_t count) const {
    std::size_t up = 0;
    for (const auto& [slot, member] : members_) up += member.peer.up;
    return up == count;
  }
  bool idle() const { return live_.empty() && aborts_.empty(); }
  bool has_live() const { return !live_.empty(); }
  const std::map<uint64_t, LoopOutcome>& outcomes() const { return outcomes_; }
  void shut_down(int64_t grace_ms) {
    for (const auto& [slot, member] : members_) {
      send_(slot.first, slot.second, wire::Shutdown{.from = {.session = 1}, .grace_ms = grace_ms});
    }
  }

 private:
  using Slot = std::pair<std::string, uint32_t>;
  struct Member {
    wire::Peer peer;
    int64_t last_seen_ms = 0;
  };
  struct Terminal {
    std::map<uint64_t, Value> chunks;
    std::set<uint64_t> seen;
    std::optional<Value> result;
    std::optional<uint64_t> count;
  };
  struct Live {
    std::vector<std::string> terminals;
    int64_t deadline_ms = 0;
    std::map<std::string, Terminal> of;
  };
  struct Arrival {
    uint64_t id = 0;
    std::string stage;
    std::optional<uint64_t> chunk;
    Result<Value> value;
  };
  struct Arrivals {
    std::mutex mutex;
    std::vector<Arrival> list;
  };

  uint32_t replicas(const std::string& stage) const {
    for (const StageSpec& spec : stages_) {
      if (spec.name == stage) return static_cast<uint32_t>(spec.replicas);
    }
    return 1;
  }
  bool fresh(const wire::Origin& from) const {
    const auto member = members_.find({from.stage, from.replica});
    return from.session == 1 && member != members_.end() && member->second.peer.up &&
           member->second.peer.incarnation == from.incarnation;
  }

  void on_message(const wire::Register& m) {
    const Slot slot{m.self.stage, m.self.replica};
    Member& member = members_[slot];
    wire::Welcome welcome{.from = {.session = 1}, .stage = m.self.stage, .incarnation = m.self.incarnation};
    welcome.lease_ms = lease_ms_;
    const bool again = member.peer.up && member.peer.incarnation == m.self.incarnation;
    if (!again && (member.peer.incarnation >= m.self.incarnation && !member.peer.stage.empty())) return;
    if (!again && member.peer.up && !member.peer.stage.empty()) lose(slot);
    if (!again) member.peer = m.self;
    member.last_seen_ms = now_;
    send_(slot.first, slot.second, welcome);
    send_table();
  }
  void on_message(const wire::StageStatus& m) {
    const auto member = members_.find({m.stage, m.replica});
    if (member == members_.end() || member->second.peer.incarnation != m.incarnation) return;
    if (member->second.peer.up) {
      member->second.last_seen_ms = now_;
      return;
    }
    wire::Welcome no{.from = {.session = 1}, .stage = m.stage, .incarnation = m.incarnation};
    no.refused = wire::Failure{StatusCode::kConflict, "the lease is lost"};
    send_(m.stage, m.replica, no);
  }
  void on_chunk(const wire::Origin& from, const wire::Chunk& chunk) {
    const auto live = live_.find(chunk.id.value);
    if (live == live_.end() || !fresh(from)) return;
    if (const auto* failure = std::get_if<wire::Failure>(&chunk.body)) {
      return end(chunk.id.value, Status(failure->code, failure->message));
    }
    Terminal& terminal = live->second.of[from.stage];
    if (const auto* result = std::get_if<wire::StageResult>(&chunk.body)) {
      if (terminal.count) return;
      terminal.count = chunk.seq;
      return fetch(chunk.id.value, from.stage, std::nullopt, result->payload);
    }
    const auto* value = std::get_if<wire::StreamValue>(&chunk.body);
    if (!value || !terminal.seen.insert(chunk.seq).second) return;
    // Its client takes everything at once. After a lost chunk nothing more is sent: the request has failed anyway.
    wire::AckBatch acks{.from = {.session = from.session}, .to = from.stage};
    acks.acks = {{.id = chunk.id, .count = terminal.seen.size()}};
    send_(from.stage, from.replica, std::move(acks));
    fetch(chunk.id.value, from.stage, chunk.seq, value->payload);
  }

  void fetch(uint64_t id, const std::string& stage, std::optional<uint64_t> chunk, const wire::Payload& payload) {
    auto add_value = [arrivals = arrivals_, id, stage, chunk](Result<Value> value) {
      std::lock_guard lock(arrivals->mutex);
      arrivals->list.push_back({id, stage, chunk, std::move(value)});
    };
    if (!payload.in_relay()) return add_value(restore_inline(payload));
    auto add = [add_value, payload](Result<std::vector<SharedBytes>> parts) {
      add_value(parts.ok() ? restore(payload.tree.bytes, payload.tensors, *parts) : parts.status());
    };
    GetRequest get{.descriptor = payload.descriptor.bytes, .request = {id}};
    get.sizes.assign(payload.part_bytes.begin(), payload.part_bytes.end());
    get.done = add;
    const auto op = relay_.get(std::move(get));
    if (!op.ok()) add(op.status());
  }
  void take_arrivals() {
    std::vector<Arrival> list;
    {
      std::lock_guard lock(arrivals_->mutex);
      list.swap(arrivals_->list);
    }
    for (Arrival& arrival : list) {
      const auto live = live_.find(arrival.id);
      if (live == live_.end()) continue;
      if (!arrival.value.ok()) {
        end(arrival.id, arrival.value.status());
        continue;
      }
      Terminal& terminal = live->second.of[arrival.stage];
      if (arrival.chunk) {
        terminal.chunks[*arrival.chunk] = deep(*arrival.value);
      } else {
        terminal.result = deep(*arrival.value);
      }
      maybe_done(arrival.id, live->second);
    }
  }
  // Bytes of one's own: the relay's go back at once.
  static Value deep(const Value& value) {
    const Lifted packed = pack(lift(value).value());
    std::vector<SharedBytes> parts;
    for (const SharedBytes& part : packed.parts) {
      Buffer copy(part.size_bytes());
      std::copy(part.data(), part.data() + part.size_bytes(), copy.data());
      parts.emplace_back(std::move(copy));
    }
    return restore(packed.tree, packed.tensors, parts).value();
  }
  void maybe_done(uint64_t id, Live& live) {
    for (const std::string& name : live.terminals) {
      const Terminal& terminal = live.of[name];
      if (!terminal.result || terminal.chunks.size() != terminal.count) return;
    }
    LoopOutcome& outcome = outcomes_[id];
    ++outcome.ends;
    for (const std::string& name : live.terminals) {
      outcome.results[name] = *live.of[name].result;
      for (auto& [n, chunk] : live.of[name].chunks) outcome.chunks[name].push_back(chunk);
    }
    live_.erase(id);
  }
  uint32_t replica_of(uint64_t id, const std::string& stage) const {
    return static_cast<uint32_t>(mix_bits(id ^ hash_name(stage)) % replicas(stage));
  }
  void end(uint64_t id, const Status& status) {
    live_.erase(id);
    LoopOutcome& outcome = outcomes_[id];
    ++outcome.ends;
    outcome.status = status;
    for (const auto& [slot, member] : members_) {
      if (member.peer.up) aborts_[id].insert(slot);
    }
    next_aborts_ms_ = now_;
  }
  void lose(const Slot& slot) {
    members_[slot].peer.up = false;
    std::vector<uint64_t> hit;
    for (const auto& [id, live] : live_) {
      if (replica_of(id, slot.first) == slot.second) hit.push_back(id);
    }
    for (const uint64_t id : hit) end(id, error(StatusCode::kUnavailable, "'{}' is lost", slot.first));
    for (auto it = aborts_.begin(); it != aborts_.end();) {
      it->second.erase(slot);
      it = it->second.empty() ? aborts_.erase(it) : std::next(it);
    }
    send_table();
  }
  void send_table() {
    next_table_ms_ = now_ + 1000;
    wire::Peers table{.from = {.session = 1}, .epoch = ++epoch_};
    for (const auto& [slot, member] : members_) table.peers.push_back(member.peer);
    for (const auto& [slot, member] : members_) {
      if (member.peer.up) send_(slot.first, slot.second, table);
    }
  }

  const int64_t lease_ms_;
  const std::vector<StageSpec> stages_;
  const std::string entry_;
  Relay& relay_;
  const std::string relay_name_;
  Send send_;
  int64_t now_ = 0;
  int64_t next_aborts_ms_ = 0;
  int64_t next_table_ms_ = 0;
  uint64_t epoch_ = 0;
  std::map<Slot, Member> members_;
  std::map<uint64_t, Live> live_;
  std::map<uint64_t, std::set<Slot>> aborts_;
  std::map<uint64_t, LoopOutcome> outcomes_;
  std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
};

}  // namespace millrace::testing
