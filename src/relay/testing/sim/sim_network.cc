#include "relay/testing/sim/sim_network.h"

#include <xxhash.h>

#include <cstring>

#include "base/rng.h"
#include "relay/testing/sim/sim_core.h"

namespace millrace {

bool SimPut::is_read() const {
  for (const auto& [who, released] : claims) {
    if (!released) return true;
  }
  return false;
}
bool SimPut::all_released() const { return claims.size() >= static_cast<std::size_t>(readers) && !is_read(); }

uint64_t sim_checksum(const std::vector<SharedBytes>& parts) {
  uint64_t sum = 0;
  for (const SharedBytes& part : parts) sum = XXH3_64bits_withSeed(part.data(), part.size_bytes(), sum + 1);
  return sum;
}

std::vector<SharedBytes> sim_copy(const std::vector<SharedBytes>& parts) {
  std::vector<SharedBytes> copies;
  for (const SharedBytes& part : parts) {
    Buffer buffer(part.size_bytes());
    if (!part.empty()) std::memcpy(buffer.data(), part.data(), part.size_bytes());
    copies.emplace_back(std::move(buffer));
  }
  return copies;
}

double SimNetwork::Core::draw() { return philox_uniform(seed, draws++); }

void SimNetwork::Core::note(uint64_t what, uint64_t op) {
  const uint64_t line[4] = {trace, what, op, static_cast<uint64_t>(now)};
  trace = XXH3_64bits(line, sizeof(line));
}

void SimNetwork::Core::at(int64_t when, std::function<void()> event) {
  events.emplace(std::make_pair(std::max(when, now), events_made++), std::move(event));
}

SimNode* SimNetwork::Core::find(const std::string& address) {
  const auto at = nodes.find(address);
  return at == nodes.end() ? nullptr : at->second.get();
}

bool SimNetwork::Core::is_cut(const std::string& a, const std::string& b) const {
  return cuts.contains({std::min(a, b), std::max(a, b)});
}

void SimNetwork::Core::arrive(const std::string& to, std::function<void(SimNode&)> what) {
  SimNode* node = find(to);
  if (!node || node->dead) return;
  if (node->paused) {
    node->held_back.push_back([this, to, what = std::move(what)] { arrive(to, what); });
    return;
  }
  what(*node);
}

void SimNetwork::Core::send(const std::string& from, const std::string& to, std::function<void(SimNode&)> what,
                            std::function<void(SimNode&)> spoiled) {
  const int copies = draw() < faults.duplicate ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    const double span = faults.max_delay_ms - faults.min_delay_ms + 1;
    const int64_t delay = faults.min_delay_ms + static_cast<int64_t>(draw() * span);
    const bool lost = draw() < faults.loss, damaged = draw() < faults.corrupt;
    if (lost) {
      note(1, 0);
      continue;
    }
    at(now + delay, [this, from, to, what, spoiled, damaged] {
      // A partition takes what is under way as well.
      if (!is_cut(from, to)) arrive(to, damaged ? spoiled : what);
    });
  }
}

void SimNetwork::Core::send_release(const std::string& from, uint64_t get, const std::string& to, uint64_t put) {
  const SimNode* sender = find(from);
  const SimNode* receiver = find(to);
  if (!sender || sender->dead || !receiver || receiver->dead) return;
  // Sent until it is known to have arrived: here, until the receiver's claim is settled.
  const auto claim = receiver->puts.find(put);
  if (claim == receiver->puts.end()) return;
  const auto state = claim->second.claims.find({from, get});
  if (state != claim->second.claims.end() ? state->second
                                          : claim->second.claims.size() >= std::size_t(claim->second.readers)) {
    return;
  }
  if (!sender->paused && !receiver->paused) {
    send(
        from, to, [this, from, get, put](SimNode& writer) { on_release(writer, from, get, put); },
        [](SimNode& writer) { writer.table->count_bad_frame(); });
  }
  at(now + kSimResendMs, [this, from, get, to, put] { send_release(from, get, to, put); });
}

void SimNetwork::Core::expire_at(SimNode& node, int64_t when) {
  at(when,
     [this, address = node.address] { arrive(address, [this](SimNode& here) { (void)here.table->expire(now); }); });
}

namespace {

// With one bit changed, at `where` of the first part that has bytes; of no bytes, in the checksum.
SimAnswer damaged(SimAnswer answer, double where) {
  for (std::size_t i = 0; i < answer.parts.size(); ++i) {
    if (answer.parts[i].empty()) continue;
    Buffer copy(answer.parts[i].size_bytes());
    std::memcpy(copy.data(), answer.parts[i].data(), copy.size_bytes());
    copy.data()[static_cast<std::size_t>(where * static_cast<double>(copy.size_bytes()))] ^= std::byte{0x10};
    answer.parts[i] = SharedBytes(std::move(copy));
    return answer;
  }
  answer.checksum ^= 1;
  return answer;
}

}  // namespace

void SimNetwork::Core::on_ask(SimNode& writer, const SimAsk& ask) {
  note(2, ask.descriptor.op.value);
  SimAnswer answer{.from = writer.address, .get = ask.get, .put = ask.descriptor.op.value};
  const auto at = writer.puts.find(ask.descriptor.op.value);
  // A double of what was answered, also where the put has ended since: a refusal that overtook the answer would end the
  // get without a release.
  if (at != writer.puts.end() && at->second.claims.contains({ask.from, ask.get})) return;
  if (writer.table->closed()) {
    answer.status = Status(StatusCode::kUnavailable, "the writer's relay was closed");
  } else if (at == writer.puts.end() || at->second.ended || at->second.generation != ask.descriptor.generation ||
             at->second.sizes_hash != ask.descriptor.sizes_hash) {
    answer.status = invalid_argument("the descriptor's put is over or is another one");
  } else if (SimPut& put = at->second; !put.destination.empty() && put.destination != ask.from) {
    answer.status = invalid_argument("the put is for '{}'; this is '{}'", put.destination, ask.from);
  } else if (put.claims.size() >= static_cast<std::size_t>(put.readers)) {
    answer.status = invalid_argument("all readers of the put have come already");
  } else {
    put.claims[{ask.from, ask.get}] = false;
    check_alive(writer, ask.from);  // it may have died while the message was under way
    answer.parts = put.parts;
    answer.checksum = sim_checksum(put.parts);
  }
  send(
      writer.address, ask.from, [this, answer](SimNode& reader) { on_answer(reader, answer); },
      [this, answer, where = draw()](SimNode& reader) {
        reader.table->count_bad_frame();
        if (answer.status.ok()) on_answer(reader, damaged(answer, where));
      });
}

void SimNetwork::Core::on_answer(SimNode& reader, SimAnswer answer) {
  note(3, answer.get);
  const RelayOp op{answer.get};
  if (!reader.gets.contains(answer.get) || !reader.table->pin(op)) return;  // a double, or given up
  if (!answer.status.ok()) {
    reader.gets.erase(answer.get);  // there is nothing to release
    (void)reader.table->end_get(op, answer.status);
  } else if (sim_checksum(answer.parts) != answer.checksum) {
    (void)reader.table->end_get(op, internal_error("the checksum of the received bytes is wrong"));
  } else {
    const std::shared_ptr<const GetRequest> request = reader.table->get(op);
    std::vector<SharedBytes> parts = answer.parts;
    const auto release = [core = weak_from_this(), from = reader.address, answer_from = answer.from, get = answer.get,
                          put = answer.put] {
      if (const auto alive = core.lock()) alive->send_release(from, get, answer_from, put);
    };
    bool keeps = false;
    if (!request->destination.empty()) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::span<std::byte> to = request->destination[i];
        if (!to.empty()) std::memcpy(to.data(), parts[i].data(), to.size());
        parts[i] = SharedBytes(nullptr, to.data(), to.size());
      }
    } else if (faults.mapped) {
      keeps = true;
      parts = reader.table->lend(std::move(parts), release);
    } else {
      parts = reader.table->lend(sim_copy(parts));
    }
    reader.gets.erase(answer.get);  // from here on the release is the parts' own
    (void)reader.table->end_get(op, std::move(parts));
    if (!keeps) release();
  }
  reader.table->unpin(op);
}

void SimNetwork::Core::on_release(SimNode& writer, const std::string& from, uint64_t get, uint64_t put) {
  const auto at = writer.puts.find(put);
  if (at == writer.puts.end()) return;
  note(4, put);
  SimPut& state = at->second;
  // Of a get that never came, too: when it comes it finds itself answered. Not where the node had no right to it.
  const bool known = state.claims.contains({from, get});
  const bool may = state.destination.empty() || state.destination == from;
  if (!known && (!may || state.claims.size() >= static_cast<std::size_t>(state.readers))) return;
  state.claims[{from, get}] = true;
  settle(writer, put);
}

void SimNetwork::Core::settle(SimNode& writer, uint64_t put) {
  const auto at = writer.puts.find(put);
  if (at == writer.puts.end()) return;
  if (at->second.ended) {
    if (at->second.is_read()) return;
    writer.puts.erase(at);
    writer.table->release(RelayOp{put});
  } else if (at->second.all_released()) {
    (void)writer.table->end_put(RelayOp{put}, ok_status());
  }
}

void SimNetwork::Core::give_up_on(SimNode& by, const std::string& node) {
  const Status gone(StatusCode::kUnavailable, fmt::format("'{}' is silent", node));
  std::vector<uint64_t> gets, puts, ended;
  for (const auto& [get, whom] : by.gets) {
    if (whom.writer == node) gets.push_back(get);
  }
  for (auto& [op, put] : by.puts) {
    bool affected = put.destination == node;
    for (auto& [who, released] : put.claims) {
      if (who.first != node || released) continue;
      released = affected = true;
    }
    if (affected) (put.ended ? ended : puts).push_back(op);
  }
  for (const uint64_t get : gets) (void)by.table->end(RelayOp{get}, gone);
  for (const uint64_t put : puts) (void)by.table->end(RelayOp{put}, gone);
  for (const uint64_t put : ended) settle(by, put);
}

void SimNetwork::Core::monitor(const std::string& node) {
  for (const auto& [address, other] : nodes) {
    if (address != node) check_alive(*other, node);
  }
}

void SimNetwork::Core::check_alive(const SimNode& by, const std::string& node) {
  const SimNode* watched = find(node);
  const int64_t since = watched && quiet(*watched) ? watched->silent_since : now;
  at(std::max(now + 1, since + by.options.silent_ms), [this, node, here = by.address] {
    const SimNode* silent = find(node);
    const SimNode* looks = find(here);
    if (!silent || !looks || !quiet(*silent)) return;
    if (now - silent->silent_since < looks->options.silent_ms) return check_alive(*looks, node);
    arrive(here, [this, node](SimNode& alive) { give_up_on(alive, node); });
  });
}

SimNetwork::SimNetwork(uint64_t seed, SimFaults faults) : core_(std::make_shared<Core>(seed, faults)) {}
SimNetwork::~SimNetwork() = default;

Result<std::unique_ptr<Relay>> SimNetwork::make_relay(const RelayOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  auto node = std::make_shared<SimNode>(options);
  const uint64_t index = core_->nodes.size() + 1;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t word = philox(core_->seed, index, 2)[i];
    std::memcpy(node->id.random.data() + 4 * i, &word, sizeof(word));
  }
  node->id.boot = index;
  node->id.pid = static_cast<uint32_t>(index);
  node->address = "sim:" + to_hex(node->id);
  node->table = std::make_unique<OpTable>(
      options, [core = core_.get(), raw = node.get()](RelayOp op, bool is_put, const Status& status) {
        core->note(is_put ? 5 : 6, op.value * 16 + static_cast<uint64_t>(status.code()));
        if (!is_put) {
          const auto get = raw->gets.extract(op.value);
          if (!get.empty()) core->send_release(raw->address, op.value, get.mapped().writer, get.mapped().put);
          return true;
        }
        const auto at = raw->puts.find(op.value);
        if (at == raw->puts.end()) return true;
        at->second.ended = true;
        if (at->second.is_read()) return false;
        raw->puts.erase(at);
        return true;
      });
  core_->nodes[node->address] = node;
  return make_sim_relay(core_, node);
}

int64_t SimNetwork::now_ms() const { return core_->now; }
void SimNetwork::set_faults(const SimFaults& faults) { core_->faults = faults; }
uint64_t SimNetwork::trace() const { return core_->trace; }

int64_t SimNetwork::next_event_ms() const {
  return core_->events.empty() ? -1 : core_->events.begin()->first.first - core_->now;
}

void SimNetwork::advance(int64_t ms) {
  const std::shared_ptr<Core> core = core_;
  const int64_t until = core->now + ms;
  while (!core->events.empty() && core->events.begin()->first.first <= until) {
    auto event = core->events.extract(core->events.begin());
    core->now = event.key().first;
    event.mapped()();
  }
  core->now = until;
}

void SimNetwork::kill(const std::string& address) {
  SimNode* node = core_->find(address);
  if (!node || node->dead) return;
  node->dead = true;
  node->held_back.clear();
  if (!node->paused) node->silent_since = core_->now;
  core_->monitor(address);
}

void SimNetwork::pause(const std::string& address) {
  SimNode* node = core_->find(address);
  if (!node || core_->quiet(*node)) return;
  node->paused = true;
  node->silent_since = core_->now;
  core_->monitor(address);
}

void SimNetwork::carry_on(const std::string& address) {
  SimNode* node = core_->find(address);
  if (!node || node->dead || !node->paused) return;
  node->paused = false;
  std::vector<std::function<void()>> held_back = std::move(node->held_back);
  node->held_back.clear();
  for (const auto& what : held_back) what();
}

void SimNetwork::cut(const std::string& a, const std::string& b) {
  core_->cuts.insert({std::min(a, b), std::max(a, b)});
}
void SimNetwork::heal(const std::string& a, const std::string& b) {
  core_->cuts.erase({std::min(a, b), std::max(a, b)});
}

}  // namespace millrace
