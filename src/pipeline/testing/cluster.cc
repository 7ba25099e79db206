#include "pipeline/testing/cluster.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "pipeline/testing/cluster_nodes.h"

namespace millrace::testing {
namespace {

constexpr int64_t kStormMs = 7000;     // accidents happen
constexpr int64_t kSettleMs = 45'000;  // then everything is back: a relay's lease is 30 s, a request's deadline far off
constexpr int64_t kProbeMs = 4000;
constexpr int kProbes = 3;

class SaboteursOutbox : public Outbox {
 public:
  SaboteursOutbox(std::shared_ptr<Outbox> inner, Sabotage sabotage) : inner_(std::move(inner)), sabotage_(sabotage) {}
  Status send(wire::Message& message) override {
    if (sabotage_ == Sabotage::kLoseAbortAcks && std::holds_alternative<wire::AbortAck>(message)) return ok_status();
    auto* batch = std::get_if<wire::ChunkBatch>(&message);
    if (batch && batch->to.empty()) {
      if (sabotage_ == Sabotage::kLoseOneChunk) std::erase_if(batch->chunks, [this](auto& c) { return is_lost(c); });
      if (sabotage_ == Sabotage::kFlipByte) flip(*batch);
      if (sabotage_ == Sabotage::kSwapChunks) swap(*batch);
    }
    return inner_->send(message);
  }

 private:
  // Chunk 1 of a stream of several; those behind it count as if it had never been.
  bool is_lost(wire::Chunk& chunk) {
    const bool is_second = chunk.seq == 1 && std::holds_alternative<wire::StreamValue>(chunk.body);
    if (is_second) lossy_.insert(chunk.id);
    if (!is_second && chunk.seq > 1 && lossy_.contains(chunk.id)) --chunk.seq;
    return is_second;
  }
  static void flip(wire::ChunkBatch& batch) {
    for (wire::Chunk& chunk : batch.chunks) {
      auto* value = std::get_if<wire::StreamValue>(&chunk.body);
      if (value && value->payload.part_bytes.empty()) value->payload.tree.bytes.back() ^= 1;
    }
  }
  // The first two of each request, which leave together.
  void swap(wire::ChunkBatch& batch) {
    std::vector<wire::Chunk> out;
    for (wire::Chunk& chunk : batch.chunks) {
      const bool is_value = std::holds_alternative<wire::StreamValue>(chunk.body);
      if (!wire::is_numbered(chunk.body)) {
        out.push_back(std::move(chunk));
        continue;
      }
      if (is_value && chunk.seq == 0) {
        held_.insert_or_assign(chunk.id, std::move(chunk));
        continue;
      }
      if (const auto first = held_.find(chunk.id); first != held_.end()) {
        if (is_value && chunk.seq == 1) std::swap(first->second.body, chunk.body);
        out.push_back(std::move(first->second));
        held_.erase(first);
      }
      out.push_back(std::move(chunk));
    }
    batch.chunks = std::move(out);
  }

  std::shared_ptr<Outbox> inner_;
  const Sabotage sabotage_;
  std::set<ReqId> lossy_;
  std::map<ReqId, wire::Chunk> held_;
};

// One client: what it asked and got.
struct Caller {
  ToyRequest request;
  ReqId id;
  int ends = 0;
  bool probe = false, refused = false;
  int64_t reads_from_ms = 0;
  ToyAnswer want;
  std::map<std::string, std::size_t> chunks;  // received
  RequestState state = RequestState::kPending;
  Status status;
};

class Run {
 public:
  explicit Run(const ClusterOptions& options) : world_(options) {}

  ClusterReport go() {
    world_.run_until(600);  // all join, or most
    storm();
    settle();
    probe();
    cancel_in_calm();
    look_at_books();
    ClusterReport& report = world_.report;
    const CoordinatorBooks books = world_.boss->books();
    report.fenced += books.fenced, report.repeated += books.repeated, report.late += books.late;
    report.virtual_ms = world_.now;
    for (const auto& caller : callers_) check(*caller);
    return report;
  }

 private:
  template <typename... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    world_.report.faults.push_back(fmt::format(format, std::forward<Args>(args)...));
    world_.record("FAULT {}", world_.report.faults.back());
  }

  // ---- the story

  void storm() {
    Dice& dice = world_.dice;
    const double wild = dice.chance(0.25) ? 0 : 1;
    const int64_t start_ms = world_.now, end_ms = start_ms + kStormMs;
    in_storm_ = true;
    for (int i = 0; i < world_.options.requests; ++i) {
      plan_.emplace(start_ms + dice.range(0, kStormMs / 2), [this] { call(false); });
    }
    for (int64_t i = dice.range(0, 4) * static_cast<int64_t>(wild); i > 0; --i) {
      plan_.emplace(start_ms + dice.range(0, kStormMs), [this] { accident(); });
    }
    for (const auto& [when, what] : plan_) {  // which may plan more
      world_.run_until(when);
      what();
      if (dice.chance(0.2)) cancel_one();
    }
    in_storm_ = false;
    world_.run_until(end_ms);
    for (const auto& [a, b] : cuts_) world_.cut(a, b, true);
    cuts_.clear();
  }

  void accident() {
    Dice& dice = world_.dice;
    const std::size_t who = static_cast<std::size_t>(dice.range(0, static_cast<int64_t>(world_.nodes.size()) - 1));
    StageNode& node = *world_.nodes[who];
    if (dice.chance(0.05)) return coordinator_dies();
    switch (dice.range(0, 4)) {
      case 0:
        ++world_.report.kills;
        return world_.kill(node);
      case 1:
        ++world_.report.pauses;
        return world_.pause(node, dice.range(100, 5000));
      case 2: {  // between two stages, or a stage and the coordinator
        ++world_.report.cuts;
        const auto other = static_cast<std::size_t>(dice.range(0, static_cast<int64_t>(world_.nodes.size())));
        if (other == who) return;
        cuts_.emplace_back(who, other);
        return world_.cut(who, other, false);
      }
      case 3:  // its messages come after its lease is over: it is a zombie and does not know it
        ++world_.report.delays;
        return world_.delay(node, dice.range(1500, 3500));
      default:
        node.slow_ms = dice.range(0, 800);
    }
  }

  // With it its clients' connections; what the stages still have of their requests belongs to none.
  void coordinator_dies() {
    ++world_.report.successions;
    world_.replace_boss();
    for (auto& caller : callers_) {
      if (caller->ends > 0) continue;
      caller->ends = 1;
      caller->state = RequestState::kFailed;
      caller->status = Status(StatusCode::kUnavailable, "the coordinator died");
    }
  }

  // All requests end at once: what was offered and fetched for them ends with them, not only by its lease. A stage that
  // reads an offer ends that with the abort, which may be lost and is sent again.
  void end_all() {
    for (int i = 0; i < 3; ++i) call(false);
    world_.boss->fail_all(Status(StatusCode::kUnavailable, "all requests end"), world_.now);
    for (int64_t ms = 0; ms <= 4 * kAbortRetryMs && world_.real_payloads->open_puts() > 0; ms += 100) {
      world_.run_until(world_.now + 100);
    }
    if (const auto puts = world_.real_payloads->open_puts(); puts > 0) fault("{} puts of ended requests", puts);
  }

  void settle() {
    if (world_.dice.chance(0.3)) end_all();
    world_.record("the storm is over");
    world_.heal_all();
    // What was kept on the way still arrives, and its senders are zombies until then.
    if (!world_.delayed.empty()) world_.run_until(world_.now + 4000);
    const int64_t end_ms = world_.now + kSettleMs;
    const auto calm = [this] { return world_.open_books().empty() && world_.boss->health().reason.empty(); };
    while (world_.now < end_ms && !calm()) world_.run_until(world_.now + 250);
    if (const std::string why = world_.boss->health().reason; !why.empty()) fault("not ready: {}", why);
    if (const std::string open = world_.open_books(); !open.empty()) fault("after {} ms of calm: {}", kSettleMs, open);
  }

  void probe() {
    world_.run_until(world_.now + kPeersRepeatMs + 100);  // a node that was cut off has the table of peers again
    for (auto& node : world_.nodes) node->slow_ms = 0;
    for (int i = 0; i < kProbes; ++i) {
      call(true);
      const int64_t end_ms = world_.now + kProbeMs;
      while (world_.now < end_ms && world_.boss->books().live > 0) world_.step(end_ms);
      world_.run_until(world_.now + 50);  // its credits come back
    }
    for (int i = 0; i < 20 && !world_.open_books().empty(); ++i) world_.run_until(world_.now + 250);
  }

  // Every stage releases them at once, not when the time of the requests is over.
  void cancel_in_calm() {
    const std::size_t first = callers_.size();
    for (int i = 0; i < 3; ++i) call(false);
    world_.run_until(world_.now + world_.dice.range(0, 20));
    for (std::size_t i = first; i < callers_.size(); ++i) world_.boss->cancel(callers_[i]->id, world_.now);
    world_.run_until(world_.now + 1000);
    if (const std::string open = world_.open_books(); !open.empty()) fault("a second after an abort: {}", open);
  }

  void look_at_books() {
    if (const std::string open = world_.open_books(); !open.empty()) fault("at the end: {}", open);
    const CoordinatorBooks b = world_.boss->books();
    if (b.aborts_given_up > 0) fault("{} aborts were given up", b.aborts_given_up);
    if (b.submitted != b.refused + b.completed + b.failed + b.aborted) fault("the counts of requests do not add up");
    for (auto& node : world_.nodes) {
      if (!node->loop) continue;
      node->loop->tick(world_.now + loop::kTombstoneMs + 1);
      if (const auto left = node->loop->books().tombstones; left > 0) fault("{}: {} tombstones", node->name, left);
    }
  }

  // ---- clients

  void call(bool probe) {
    Dice& dice = world_.dice;
    auto& caller = *callers_.emplace_back(std::make_unique<Caller>());
    ToyRequest& r = caller.request;
    r.seed = dice.next() >> 2;
    r.chunks = dice.range(0, 6);
    r.blob = dice.chance(0.6) ? dice.range(1, 6000) : 0;  // some in the message, some through a relay
    // More than a window (wire::kMaxUnackedChunks), of which all that is under way may be lost.
    if (!probe && r.seed % 10 == 0) r.chunks = 200 + r.seed % 1300, r.blob = 0;
    r.image = dice.chance(0.5), r.sound = dice.chance(0.5);
    r.want_audio = dice.chance(0.6);
    r.want_text = !r.want_audio || dice.chance(0.7);
    caller.probe = probe;
    caller.want = evaluate(r);
    if (!probe && dice.chance(0.1)) caller.reads_from_ms = world_.now + dice.range(0, 3000);
    SubmitOptions options{.terminals = r.terminals()};
    if (!probe && dice.chance(0.1)) options.timeout_ms = dice.range(1, 300);
    const auto sink = [this, &caller](RequestEvent& event) { return on_event(caller, event); };
    const auto opened = world_.boss->open(r.inputs(), options, sink, world_.now);
    caller.id = opened.id;
    caller.refused = opened.refused;
    world_.record("submit {} ({} chunks, blob {})", caller.id.value, r.chunks, r.blob);
    if (opened.inputs_to) copy_inputs(caller, *opened.inputs_to, in_storm_ && dice.chance(0.3));
  }

  // Slowly: a client's thread looks at nothing while it copies, so anything may happen before the put, and before
  // start().
  void copy_inputs(const Caller& caller, const wire::Peer& to, bool slowly) {
    const auto session = world_.boss->members().self().session;
    const auto give = [this, session, id = caller.id, to, inputs = caller.request.inputs(), slowly] {
      if (world_.boss->members().self().session != session) return;  // the coordinator has died
      auto payload = world_.real_payloads->give(id, inputs, to);
      const auto start = [this, session, id, payload] {
        if (world_.boss->members().self().session == session) world_.boss->start(id, payload, world_.now);
      };
      slowly ? later(start) : start();
    };
    slowly ? later(give) : give();
  }
  void later(std::function<void()> what) { plan_.emplace(world_.now + world_.dice.range(0, 200), std::move(what)); }

  void cancel_one() {
    if (callers_.empty()) return;
    const auto i = world_.dice.range(0, static_cast<int64_t>(callers_.size()) - 1);
    Caller& caller = *callers_[static_cast<std::size_t>(i)];
    world_.record("cancel {}", caller.id.value);
    world_.boss->cancel(caller.id, world_.now);
  }

  SinkAnswer on_event(Caller& caller, RequestEvent& event) {
    if (caller.ends > 0) fault("request {}: event after its end", event.id.value);
    const RequestEvent::End* const end = event.end();
    if (event.is_chunk()) {
      if (world_.now < caller.reads_from_ms) return SinkAnswer::kFull;
      check_chunk(caller, event);
    }
    if (end) {
      ++caller.ends;
      caller.state = end->state, caller.status = end->status;
      if (end->status.ok()) check_result(caller, end->result);
      world_.record("end {}: {} {}", event.id.value, static_cast<int>(end->state), end->status.message());
    }
    return SinkAnswer::kTaken;
  }

  // Compared at once: a value that is kept longer keeps a relay's credit.
  void check_chunk(Caller& caller, const RequestEvent& event) {
    const std::string stage(event.stage);
    const std::vector<Value>& want = caller.want.chunks[stage];
    const std::size_t i = caller.chunks[stage]++;
    if (event.chunk_id != i) fault("request {}: chunk {} is the {}th", event.id.value, event.chunk_id, i);
    if (i >= want.size() || !same_bits(event.value_chunk()->value, want[i])) {
      fault("request {}: chunk {} of {} differs", event.id.value, i, event.stage);
    }
  }

  void check_result(Caller& caller, const Value& result) {
    if (!same_bits(result, caller.want.result)) fault("request {}: another result than alone", caller.id.value);
    for (const auto& [stage, want] : caller.want.chunks) {
      const std::size_t got = caller.chunks[stage];
      if (got != want.size()) fault("request {}: {} chunks of {}; wanted {}", caller.id.value, got, stage, want.size());
    }
  }

  void check(const Caller& caller) {
    ClusterReport& report = world_.report;
    if (caller.ends != 1) fault("request {}: {} ends", caller.id.value, caller.ends);
    if (caller.probe && !caller.status.ok()) {
      fault("request {} in calm weather: {}", caller.id.value, caller.status.to_string());
    }
    if (caller.state == RequestState::kCompleted) ++report.completed;
    if (caller.state == RequestState::kAborted) ++report.aborted;
    if (caller.state == RequestState::kFailed) ++(caller.refused ? report.refused : report.failed);
    for (const uint64_t part :
         {caller.id.value, static_cast<uint64_t>(caller.state), hash_name(caller.status.message())}) {
      report.hash = mix_bits(report.hash ^ part);
    }
  }

  World world_;
  std::multimap<int64_t, std::function<void()>> plan_;  // of the storm
  bool in_storm_ = false;
  std::vector<std::unique_ptr<Caller>> callers_;
  std::vector<std::pair<std::size_t, std::size_t>> cuts_;
};

}  // namespace

std::shared_ptr<Outbox> sabotaged(std::shared_ptr<Outbox> outbox, Sabotage sabotage) {
  if (sabotage == Sabotage::kNone) return outbox;
  return std::make_shared<SaboteursOutbox>(std::move(outbox), sabotage);
}

ClusterReport run_cluster(const ClusterOptions& options) { return Run(options).go(); }

}  // namespace millrace::testing
