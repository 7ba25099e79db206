// OneStage: a stage loop alone, for tests that deliver every message themselves and look at every one that comes out.
// The stage is "mid"; what is around it exists only as peers in its table.
//
// Thread safety: one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "payload/inline_parts.h"
#include "payload/packing.h"
#include "stages/stage_loop.h"
#include "stages/testing/fake_relay.h"

namespace millrace::testing {

// What left through one outbox.
struct RecordingOutbox : Outbox {
  Status send(wire::Message& message) override {
    if (!answer.ok()) return answer;
    sent.push_back(std::move(message));
    return ok_status();
  }
  template <typename M>
  std::vector<M> all() const {
    std::vector<M> out;
    for (const wire::Message& message : sent) {
      if (const M* m = std::get_if<M>(&message)) out.push_back(*m);
    }
    return out;
  }
  // Those of all batches, in order.
  std::vector<wire::Chunk> chunks() const {
    std::vector<wire::Chunk> out;
    for (const auto& batch : all<wire::ChunkBatch>()) out.insert(out.end(), batch.chunks.begin(), batch.chunks.end());
    return out;
  }
  std::vector<wire::Ack> acks() const {
    std::vector<wire::Ack> out;
    for (const auto& batch : all<wire::AckBatch>()) out.insert(out.end(), batch.acks.begin(), batch.acks.end());
    return out;
  }
  // The chunks with one kind of body.
  template <typename Body>
  std::vector<wire::Chunk> with() const {
    std::vector<wire::Chunk> out = chunks();
    std::erase_if(out, [](const wire::Chunk& chunk) { return !std::holds_alternative<Body>(chunk.body); });
    return out;
  }
  std::vector<wire::Message> sent;
  Status answer;
};

// One chunk on its way into the stage, in a batch of its own.
struct Incoming {
  wire::Origin from;
  std::string to = "mid";
  wire::Chunk chunk;
};

// Records its calls; emits what the test wants.
struct ScriptedWorker : Worker {
  struct Log {
    std::vector<std::string> calls;  // "start 1", "chunk 1 a 7", "done 1 a", "drop 1"
    std::function<void(ReqId, const Value&, Emit&)> on_start;
    std::function<void(ReqId, const Value&, Emit&)> on_chunk;
    std::vector<std::function<void(Emit&)>> next_tick;  // called there
    std::map<uint64_t, Value> payloads;
    std::function<void(const wire::AdminRequest&, Emit&)> admin;
    bool holds = false;    // something for others
    bool drained = false;  // it was asked to
  };
  explicit ScriptedWorker(std::shared_ptr<Log> log) : log_(std::move(log)) {}
  void trace(std::string traceparent) override { log_->calls.push_back("trace " + traceparent); }
  void start(ReqId id, Value payload, Emit& emit) override {
    log_->calls.push_back(fmt::format("start {}", id.value));
    log_->payloads[id.value] = payload;
    if (log_->on_start) log_->on_start(id, payload, emit);
  }
  void chunk(ReqId id, const std::string& from, Value chunk, Emit& emit) override {
    const int64_t* number = chunk.find("n") ? chunk.find("n")->get<int64_t>() : nullptr;
    log_->calls.push_back(fmt::format("chunk {} {} {}", id.value, from, number ? *number : -1));
    if (log_->on_chunk) log_->on_chunk(id, chunk, emit);
  }
  void chunks_done(ReqId id, const std::string& from, Emit&) override {
    log_->calls.push_back(fmt::format("done {} {}", id.value, from));
  }
  void drop(ReqId id) override {
    log_->calls.push_back(fmt::format("drop {}", id.value));
    log_->payloads.erase(id.value);
  }
  int tick(int64_t, Emit& emit) override {
    auto due = std::move(log_->next_tick);
    log_->next_tick.clear();
    for (auto& call : due) call(emit);
    return 1;
  }
  void admin(const wire::AdminRequest& command, int64_t now_ms, Emit& emit) override {
    log_->admin ? log_->admin(command, emit) : Worker::admin(command, now_ms, emit);
  }
  void on_lease_lost() override { log_->calls.emplace_back("lease lost"); }
  void drain() override { log_->drained = true; }
  bool holds() const override { return log_->holds; }
  std::shared_ptr<Log> log_;
};

class OneStage : public ::testing::Test {
 protected:
  static constexpr uint64_t kSession = 9;

  void SetUp() override {
    spec_.name = "mid";
    spec_.next = {"x", "y"};
    config_.payload_from = {"a", "b", "c"};
    config_.stream_from = {"a", "b"};
    for (const char* name : {"a", "b", "c", "mid", "x", "y"}) config_.replicas[name] = 1;
    config_.self.stage = "mid";
    config_.self.incarnation = 1;
    config_.self.pid = 100;
    config_.reply_to = "mid";
  }

  void make(bool join = true) {
    config_.spec = spec_;
    relay_ = std::make_shared<FakeRelay>(hub_, "mid");
    StageLoopEnv env;
    env.coordinator = coordinator_;
    env.connect = [this](const wire::Peer& peer) -> Result<std::shared_ptr<Outbox>> {
      if (unreachable_ == peer.stage) return error(StatusCode::kInvalidArgument, "no way to {}", peer.stage);
      ++connects_;
      return std::shared_ptr<Outbox>(out(peer.stage, peer.replica));
    };
    env.relays = {{"fake", relay_}};
    env.worker = std::make_unique<loop::InlineWorkerHost>(std::make_unique<ScriptedWorker>(log_));
    env.on_lease_lost = [this] { ++leases_lost_; };
    env.spans = spans_;
    auto loop = StageLoop::make(config_, library_, std::move(env));
    ASSERT_TRUE(loop.ok()) << loop.status().to_string();
    loop_ = std::move(loop).value();
    loop_->tick(now_);
    if (!join) return;
    welcome();
    peers();
  }
  void welcome() {
    deliver(wire::Welcome{
        .from = from_coordinator(), .stage = "mid", .incarnation = loop_->incarnation(), .lease_ms = 2000});
  }
  wire::Origin from_coordinator() const { return {.session = kSession}; }
  wire::Peers table() {
    wire::Peers peers{.from = from_coordinator(), .epoch = ++epoch_};
    for (const auto& [name, replicas] : config_.replicas) {
      for (uint32_t replica = 0; replica < replicas; ++replica) {
        wire::Peer peer{.stage = name, .replica = replica, .incarnation = incarnation_[name], .endpoint = name};
        peer.relays = {{.relay = "fake", .address = {name}}};
        peer.pid = 200;
        if (name != "mid") peers.peers.push_back(peer);
      }
    }
    return peers;
  }
  void peers() { deliver(table()); }
  std::shared_ptr<RecordingOutbox> out(const std::string& stage, uint32_t replica = 0) {
    auto& box = outs_[{stage, replica}];
    if (!box) box = std::make_shared<RecordingOutbox>();
    return box;
  }

  void deliver(wire::Message message) {
    loop_->handle(std::move(message), now_);
    run(0);
  }
  void receive(Incoming in) {
    give(std::move(in));
    run(0);
  }
  // Without a step.
  void give(Incoming in) {
    wire::ChunkBatch batch{.from = std::move(in.from), .to = std::move(in.to)};
    batch.chunks.push_back(std::move(in.chunk));
    loop_->handle(std::move(batch), now_);
  }
  // Virtual time goes on by ms, step by step.
  void run(int64_t ms) {
    const int64_t until = now_ + ms;
    for (;;) {
      hub_.step(now_);
      const int64_t wake_ms = loop_->tick(now_);
      if (now_ >= until) break;
      now_ = std::clamp(wake_ms, now_ + 1, std::min(until, now_ + 10));
      if (keep_lease_ && now_ - sent_peers_ms_ >= 1000) sent_peers_ms_ = now_, loop_->handle(table(), now_);
    }
  }

  wire::Payload inline_payload(const Value& value) {
    Lifted lifted = lift(value).value();
    return {.tree = {lifted.tree}, .tensors = lifted.tensors};
  }
  // Lies in the relay, put by `from`.
  wire::Payload put_payload(const Value& value, const std::string& from, std::function<void(const Status&)> done = {}) {
    Lifted lifted = lift(value).value();
    wire::Payload payload{.tree = {lifted.tree}, .tensors = lifted.tensors};
    for (const SharedBytes& part : lifted.parts) payload.part_bytes.push_back(part.size_bytes());
    FakeRelay relay(hub_, from);
    if (!done) done = [](const Status&) {};
    payload.descriptor.bytes = relay.put({.parts = lifted.parts, .done = done}).value().descriptor;
    payload.relay = "fake";
    return payload;
  }
  // For a relay: larger than what travels in the message.
  static Value with_tensor(int64_t n, int64_t bytes = 4096) {
    Buffer buffer(static_cast<std::size_t>(bytes));
    std::fill_n(buffer.as<uint8_t>().begin(), bytes, static_cast<uint8_t>(n));
    Value value;
    value.set("n", n);
    value.set("t", SharedTensor{.dtype = DType::kU8, .shape = {bytes}, .bytes = SharedBytes(std::move(buffer))});
    return value;
  }
  // The worker's result of every request.
  void result(Value value) {
    log_->on_start = [value](ReqId id, const Value&, Emit& emit) { emit.result(id, value); };
  }
  // Request `id` starts, and in it the worker emits something.
  void work(uint64_t id, std::function<void(Emit&)> call) {
    if (!loop_->books().requests) receive(payload(id, "a", number(1)));
    log_->next_tick.push_back(std::move(call));
    run(1);
  }
  static Value number(int64_t n) {
    Value value;
    value.set("n", n);
    return value;
  }
  Incoming in(uint64_t id, const std::string& from, uint64_t seq, wire::ChunkBody body) {
    Incoming m{.from = {kSession, from, 0, incarnation_[from]}};
    m.chunk = {.id = {id}, .seq = seq, .body = std::move(body)};
    if (seq > 0 || !wire::is_numbered(m.chunk.body)) return m;
    m.chunk.opening = wire::Opening{
        .terminals = {"end"}, .timeout_ms = timeout_ms_, .route = route_of_(id), .traceparent = traceparent_};
    return m;
  }
  // The result of `from`, behind so many chunks.
  Incoming payload(uint64_t id, const std::string& from, const Value& value, uint64_t seq = 0) {
    return in(id, from, seq, wire::StageResult{inline_payload(value)});
  }
  Incoming lying_payload(uint64_t id, const std::string& from, wire::Payload payload) {
    return in(id, from, 0, wire::StageResult{std::move(payload)});
  }
  Incoming chunk(uint64_t id, const std::string& from, uint64_t n) {
    return in(id, from, n, wire::StreamValue{.payload = inline_payload(number(static_cast<int64_t>(n)))});
  }
  Incoming put_chunk(uint64_t id, const std::string& from, uint64_t n, const std::string& owner) {
    return in(id, from, n, wire::StreamValue{.payload = put_payload(with_tensor(static_cast<int64_t>(n)), owner)});
  }
  Incoming done(uint64_t id, const std::string& from, uint64_t count) { return in(id, from, count, wire::StreamEnd{}); }
  static const wire::Payload& payload_in(const wire::Chunk& chunk) { return *wire::payload_of(chunk.body); }
  static Value value_of(const wire::Chunk& chunk, FakeHub& hub) { return value_of(payload_in(chunk), hub); }
  static Value value_of(const wire::Payload& payload, FakeHub& hub) {
    if (!payload.in_relay()) return restore_inline(payload).value();
    const std::vector<SharedBytes>& parts = hub.puts.at(std::stoull(payload.descriptor.bytes)).request.parts;
    return restore(payload.tree.bytes, payload.tensors, parts).value();
  }
  // The receiver of a put takes it and releases it.
  void take(const wire::Payload& payload) {
    hub_.end_put(std::stoull(payload.descriptor.bytes), ok_status());
    run(0);
  }

  // The one end of a request that the coordinator gets, which is a failure.
  std::string failure(uint64_t id, StatusCode code) {
    std::vector<wire::Chunk> of = ends();
    std::erase_if(of, [id](const wire::Chunk& chunk) { return chunk.id.value != id; });
    EXPECT_EQ(of.size(), 1u) << "completions of " << id;
    const auto* failure = of.size() == 1 ? std::get_if<wire::Failure>(&of[0].body) : nullptr;
    if (!failure) return "(no failure)";
    EXPECT_EQ(failure->code, code) << failure->message;
    return failure->message;
  }
  // Results and failures that the coordinator got.
  std::vector<wire::Chunk> ends() const {
    std::vector<wire::Chunk> out = coordinator_->chunks();
    std::erase_if(out, [](const wire::Chunk& chunk) {
      return !std::holds_alternative<wire::StageResult>(chunk.body) &&
             !std::holds_alternative<wire::Failure>(chunk.body);
    });
    return out;
  }
  std::size_t acks(uint64_t id) {
    const auto all = coordinator_->all<wire::AbortAck>();
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [id](const auto& a) { return a.id.value == id; }));
  }
  bool called(const std::string& what) const {
    return std::find(log_->calls.begin(), log_->calls.end(), what) != log_->calls.end();
  }
  // Nothing of any request is left.
  void expect_clean() {
    run(0);
    const StageLoopBooks books = loop_->books();
    EXPECT_EQ(books.requests, 0u);
    EXPECT_EQ(books.puts, 0u);
    EXPECT_EQ(books.gets, 0u);
    EXPECT_EQ(books.held_chunks, 0u);
    EXPECT_EQ(books.queued_items, 0u);
    EXPECT_EQ(books.queued_bytes, 0u);
    EXPECT_EQ(books.worker_events, 0u);
    EXPECT_EQ(books.parked, 0u);
    run(2 * loop::kRetryMs);
    EXPECT_EQ(loop_->books().lists, 0u);
    EXPECT_EQ(hub_.open_puts["mid"], 0);
    EXPECT_EQ(log_->payloads.size(), 0u);
  }

  int64_t now_ = 1000;
  int64_t timeout_ms_ = 60'000;
  std::function<std::vector<wire::RouteHop>(uint64_t id)> route_of_ = [](uint64_t) {
    return std::vector<wire::RouteHop>{};
  };
  std::string traceparent_;          // of the requests that come
  std::shared_ptr<SpanSink> spans_;  // null: the stage exports none
  bool keep_lease_ = true;
  int64_t sent_peers_ms_ = 1000;
  uint64_t epoch_ = 0;
  std::map<std::string, uint64_t> incarnation_;
  std::string unreachable_;
  int connects_ = 0;
  int leases_lost_ = 0;
  StageSpec spec_;
  StageLoopConfig config_;
  Library library_;
  FakeHub hub_;
  std::shared_ptr<FakeRelay> relay_;
  std::shared_ptr<RecordingOutbox> coordinator_ = std::make_shared<RecordingOutbox>();
  std::map<std::pair<std::string, uint32_t>, std::shared_ptr<RecordingOutbox>> outs_;
  std::shared_ptr<ScriptedWorker::Log> log_ = std::make_shared<ScriptedWorker::Log>();
  std::unique_ptr<StageLoop> loop_;
};

}  // namespace millrace::testing
