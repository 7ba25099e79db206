// CoordinatorHarness: a coordinator among stages that a test plays by hand, on a clock that the test turns.
//
// The pipeline: "prepare" -> "think" (2 replicas) -> "decode" (terminal); think -> "talk" -> "tone" (terminal).
// For tests only. Thread safety: none.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "payload/packing.h"
#include "pipeline/coordinator.h"

namespace millrace::testing {

inline constexpr uint64_t kSession = 77;

inline PipelineSpec two_terminals() {
  PipelineSpec spec{.name = "two", .entry = "prepare"};
  spec.stages = {{.name = "prepare", .worker = "w", .next = {"think"}},
                 {.name = "think", .worker = "w", .next = {"decode", "talk"}, .stream_to = {"decode"}, .replicas = 2},
                 {.name = "decode", .worker = "w", .terminal = true},
                 {.name = "talk", .worker = "w", .next = {"tone"}, .host = "far"},
                 {.name = "tone", .worker = "w", .terminal = true}};
  spec.request_timeout_s = 60;
  spec.max_requests = 4;
  return spec;
}

// What a stage was sent, until the test looks at it.
class StageBox : public Outbox {
 public:
  Status send(wire::Message& message) override {
    if (full) return Status(StatusCode::kResourceExhausted, "full");
    messages.push_back(std::move(message));
    return ok_status();
  }
  template <typename M>
  std::vector<M> take() {
    std::vector<M> out;
    for (auto& message : std::exchange(messages, {})) {
      if (auto* m = std::get_if<M>(&message)) {
        out.push_back(*m);
      } else {
        messages.push_back(std::move(message));
      }
    }
    return out;
  }
  std::deque<wire::Message> messages;
  bool full = false;
};

// Values with a part are "fetched" when the test calls finish(); the part's descriptor is a number.
class ManualPayloads : public Payloads {
 public:
  Result<wire::Payload> give(ReqId, const Value& value, const wire::Peer&) override {
    RETURN_IF_ERROR(refusal);
    ASSIGN_OR_RETURN(Lifted lifted, lift(value));
    return wire::Payload{.tree = {std::move(lifted.tree)}, .tensors = std::move(lifted.tensors)};
  }
  void take(ReqId id, const wire::Payload& payload, int timeout_ms, Taken done) override {
    timeouts[payload.descriptor.bytes] = timeout_ms;
    open.emplace(payload.descriptor.bytes, std::make_pair(id, std::move(done)));
  }
  void forget(ReqId id) override { forgotten.push_back(id); }
  void finish(const std::string& descriptor, Result<Value> value) {
    const Taken done = std::move(open.at(descriptor).second);
    open.erase(descriptor);
    done(std::move(value));
  }
  Status refusal;
  std::map<std::string, std::pair<ReqId, Taken>> open;
  std::map<std::string, int> timeouts;
  std::vector<ReqId> forgotten;
};

inline wire::Payload in_tree(const Value& value) { return {.tree = {lift(value)->tree}}; }
inline wire::Payload through_relay(const std::string& descriptor) {
  const wire::TensorInfo tensor{.path = "", .dtype = "U8", .shape = {100}, .size = 100};
  return {.tree = {lift(Value())->tree},
          .tensors = {tensor},
          .part_bytes = {100},
          .relay = "hand",
          .descriptor = {descriptor}};
}

struct Client {
  std::vector<RequestEvent> chunks;
  int ends = 0;
  RequestEvent::End end;
  bool full = false;
  RequestSink sink() {
    return [this](RequestEvent& event) {
      if (event.is_chunk() && full) return SinkAnswer::kFull;
      EXPECT_EQ(ends, 0) << "event after the end";
      if (event.is_chunk()) {
        chunks.push_back(std::move(event));
      } else {
        ++ends, end = std::get<RequestEvent::End>(std::move(event.body));
      }
      return SinkAnswer::kTaken;
    };
  }
  std::string texts() const {
    std::string out;
    for (const RequestEvent& chunk : chunks) out += *chunk.value_chunk()->value.get<std::string>();
    return out;
  }
};

class CoordinatorHarness : public ::testing::Test, public CoordinatorEnv {
 protected:
  void make(CoordinatorOptions options = {}) {
    options.session = kSession;
    core = std::make_unique<Coordinator>(spec, library, options, *this, payloads, now);
  }
  void SetUp() override {
    make();
    all_join();
  }

  std::shared_ptr<Outbox> open(const std::string& endpoint) override {
    if (endpoint == unreachable) return nullptr;
    auto& box = boxes[endpoint];
    if (!box) box = std::make_shared<StageBox>();
    return box;
  }
  void lost(const ReplicaView& replica, const std::string& reason) override {
    lost_replicas.emplace_back(replica.name, reason);
  }

  static std::string replica_name(const std::string& stage, uint32_t replica) {
    return stage + "/" + std::to_string(replica);
  }
  StageBox& box(const std::string& stage, uint32_t replica = 0) {
    return dynamic_cast<StageBox&>(*open(replica_name(stage, replica)));
  }
  wire::Register registration(const std::string& stage, uint32_t replica, uint64_t incarnation) {
    wire::Register message{.reply_to = replica_name(stage, replica), .spec_hash = spec.hash()};
    message.self = {.stage = stage, .replica = replica, .incarnation = incarnation, .endpoint = message.reply_to};
    message.self.pid = static_cast<int64_t>(incarnation);
    return message;
  }
  void join(const std::string& stage, uint32_t replica = 0, uint64_t incarnation = 1) {
    core->handle(registration(stage, replica, incarnation), now);
    beat(stage, replica, incarnation);
  }
  void beat(const std::string& stage, uint32_t replica = 0, uint64_t incarnation = 1,
            wire::StageState state = wire::StageState::kReady) {
    wire::StageStatus status{.stage = stage, .incarnation = incarnation, .state = state, .replica = replica};
    status.peers_epoch = knows_epoch.value_or(core->members().epoch());
    core->handle(status, now);
  }
  void all_join() {
    for (const StageSpec& stage : spec.stages) {
      for (uint32_t i = 0; i < static_cast<uint32_t>(stage.replicas); ++i) join(stage.name, i);
    }
  }
  // Time goes on in heartbeats; `silent` sends none.
  void pass(int64_t ms, const std::string& silent = "") {
    for (const int64_t end = now + ms; now < end;) {
      now += 250;
      for (const ReplicaView& replica : core->members().replicas()) {
        if (replica.up && replica.name != silent) beat(replica.stage, replica.replica, replica.peer.incarnation);
      }
      core->tick(now);
    }
  }

  ReqId submit(Client& client, SubmitOptions options = {}, const Value& inputs = Value("input")) {
    const Coordinator::Opened opened = core->open(inputs, std::move(options), client.sink(), now);
    if (opened.inputs_to) core->start(opened.id, payloads.give(opened.id, inputs, *opened.inputs_to), now);
    return opened.id;
  }
  static wire::Origin from(const std::string& stage, uint32_t replica = 0, uint64_t incarnation = 1) {
    return {.session = kSession, .stage = stage, .replica = replica, .incarnation = incarnation};
  }
  // One chunk in a batch of its own.
  void chunk_of(ReqId id, wire::Origin origin, wire::ChunkBody body, uint64_t seq = 0) {
    wire::ChunkBatch batch{.from = std::move(origin)};
    batch.chunks.push_back({.id = id, .seq = seq, .body = std::move(body)});
    core->handle(std::move(batch), now);
  }
  void chunk(ReqId id, const std::string& stage, uint64_t seq, wire::Payload payload) {
    chunk_of(id, from(stage), wire::StreamValue{.modality = "text", .payload = std::move(payload)}, seq);
  }
  // Behind so many chunks.
  void complete(ReqId id, const std::string& stage, wire::Payload result, uint64_t chunks = 0) {
    chunk_of(id, from(stage), wire::StageResult{std::move(result)}, chunks);
  }
  void fail(ReqId id, const std::string& stage, StatusCode code, const std::string& message) {
    chunk_of(id, from(stage), wire::Failure{code, message});
  }
  // Every stage that was asked to acknowledges.
  void acknowledge_aborts() {
    for (const ReplicaView& replica : core->members().replicas()) {
      for (const auto& abort : box(replica.stage, replica.replica).take<wire::AbortRequest>()) {
        core->handle(wire::AbortAck{abort.id, from(replica.stage, replica.replica, replica.peer.incarnation)}, now);
      }
    }
  }
  uint32_t replica_of(ReqId id, const std::string& stage) const {
    for (const wire::RouteHop& hop : core->route_of(id)) {
      if (hop.stage == stage) return hop.replica;
    }
    ADD_FAILURE() << "request " << id.value << " has no replica of " << stage;
    return 0;
  }
  uint32_t thinker_of(ReqId id) const { return replica_of(id, "think"); }
  void expect_quiet() {
    const CoordinatorBooks books = core->books();
    EXPECT_EQ(books.live, 0u);
    EXPECT_EQ(books.pending, 0u);
    EXPECT_EQ(books.running, 0u);
    EXPECT_EQ(books.fetches, 0u);
    EXPECT_EQ(books.queued_chunks, 0u);
    EXPECT_EQ(books.queued_bytes, 0u);
    EXPECT_EQ(books.open_aborts, 0u);
    EXPECT_EQ(books.awaited_acks, 0u);
    EXPECT_EQ(books.open_commands, 0u);
    EXPECT_EQ(books.submitted, books.refused + books.completed + books.failed + books.aborted);
  }

  int64_t now = 1000;
  PipelineSpec spec = two_terminals();
  Library library;
  ManualPayloads payloads;
  std::map<std::string, std::shared_ptr<StageBox>> boxes;
  std::optional<uint64_t> knows_epoch;  // that stages report in their heartbeats; empty: the present one
  std::vector<std::pair<std::string, std::string>> lost_replicas;
  std::string unreachable;  // no socket to this endpoint can be opened
  std::unique_ptr<Coordinator> core;
};

}  // namespace millrace::testing
