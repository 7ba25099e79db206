// The messages of pipelines: the same bytes as the oracle's, back as they were, and what both sides refuse.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <random>

#include "base/utf8.h"
#include "wire/codec.h"
#include "wire/limits.h"
#include "wire/testing/frames.h"
#include "wire/testing/samples.h"

namespace millrace::wire {
namespace {

using namespace std::string_literals;

const Origin kCoordinator = {.session = 0x1122334455667788};
const Origin kEncoder = {.session = 0x1122334455667788, .stage = "image_encoder", .replica = 1, .incarnation = 7};
const Failure kFailure = {StatusCode::kResourceExhausted, "no room for 2 images; wanted at most 1"};

Payload no_tensors() { return {.tree = {"\x82\xa4text\xaazażółć\xa1n\x03"}}; }

Payload tensors() {
  return {.tree = {"\x82\xa1x\xd6\x01\0\0\0\0\xa4rest\x92\xd6\x01\0\0\0\1\xd6\x01\0\0\0\2"s},
          .tensors = {{"x", "BF16", {2, 3}, 0, 0, 12}, {"rest[0]", "F32", {}, 1, 64, 4}, {"rest[1]", "I64", {0, 4}}},
          .part_bytes = {12, 68},
          .relay = "shm",
          .descriptor = {"\0\xffslot 3"s}};
}

Peer sample_peer() {
  return {.stage = "image_encoder",
          .replica = 1,
          .incarnation = 7,
          .endpoint = "ipc:///run/millrace/image_encoder-1",
          .host = "gpu-host",
          .boot = "3f6a",
          .pid = 4242,
          .relays = {{"shm", {"\0shm"s}}, {"tcp", {"[::1]:4000"}}},
          .serves = true};
}

Peer other_peer() { return {"decode", 0, 1, "tcp://[::1]:5001", "", "", 1, {}, false, "tcp://[::1]:5002"}; }

const std::vector<RouteHop> kRoute = {{"decode", 3, 7}, {"code2wav"}};

// Two small tensors, whose bytes are in the message.
Payload in_message() {
  return {.tree = {"\x92\xd6\x01\0\0\0\0\xd6\x01\0\0\0\1"s},
          .tensors = {{"[0]", "U8", {3}, 0, 0, 3}, {"[1]", "I32", {1}, 1, 0, 4}},
          .part_bytes = {3, 4},
          .inline_bytes = {"\1\2\3\0\0\0\xff"s}};
}

using testing::sample_request;
TokenDelta sample_tokens() { return testing::sample_tokens(9); }
TextDelta sample_text(const char* text) {
  return {.id = ReqId{9},
          .text = text,
          .usage = {.prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1},
          .tokens = {9},
          .weight_version = 2,
          .events = {{OutputEvent::Kind::kCallBegin, "weather"}, {OutputEvent::Kind::kCallEnd, ""}}};
}

Chunk chunk(uint64_t seq, ChunkBody body, uint64_t id = 9) {
  return {.id = ReqId{id}, .seq = seq, .body = std::move(body)};
}

ChunkBatch to_stage() {
  ChunkBatch batch{.from = kEncoder, .to = "aggregate"};
  batch.chunks = {chunk(0, StreamValue{.payload = in_message()}),
                  chunk(1, StreamValue{.payload = tensors()}),
                  chunk(2, StreamEnd{}),
                  chunk(3, StageResult{tensors()}),
                  chunk(0, sample_tokens(), ~uint64_t{0}),
                  chunk(1, sample_text("zażółć"), 10),
                  chunk(0, kFailure, 11),
                  chunk(0, SentCount{~uint64_t{0}}, 12)};
  batch.chunks[0].opening = Opening{{"decode"}, 1500, kRoute, testing::kTraceparent};
  batch.chunks[4].opening = Opening{.timeout_ms = -5};
  return batch;
}

ChunkBatch to_coordinator() {
  ChunkBatch batch{.from = kEncoder};
  batch.chunks = {chunk(4294967296, StreamValue{"audio", tensors()}),
                  chunk(41, sample_text("done")),
                  chunk(42, StageResult{no_tensors()}),
                  chunk(0, kFailure, 10),
                  chunk(0, InputsComplete{{"thinker", "mm_aggregate"}}, 11),
                  chunk(0, SentCount{300}, 12)};
  return batch;
}

ChunkBatch stream_end() { return {.from = kEncoder, .to = "decode", .chunks = {chunk(300, StreamEnd{})}}; }

Submit sample_submit() {
  return {.id = ReqId{9},
          .from = kCoordinator,
          .payload = no_tensors(),
          .terminals = {"decode", "code2wav"},
          .timeout_ms = 30000,
          .route = kRoute,
          .traceparent = testing::kTraceparent};
}

Submit sample_generate() {
  return {.id = ReqId{9},
          .from = kCoordinator,
          .payload = {.tree = {"\xc0"}},
          .terminals = {"decode"},
          .generate = sample_request()};
}

Welcome welcome() { return {.from = kCoordinator, .stage = "image_encoder", .incarnation = 7, .lease_ms = 1500}; }
Welcome refusal() {
  return {.from = kCoordinator,
          .stage = "image_encoder",
          .incarnation = 7,
          .refused = Failure{StatusCode::kConflict, "spec 1; wanted 2"}};
}

// By the names of their files in tests/golden/wire.
std::vector<std::pair<std::string, Message>> samples() {
  return {
      {"submit", sample_submit()},
      {"submit_generate", sample_generate()},
      {"chunk_batch", to_stage()},
      {"chunk_batch_end", stream_end()},
      {"chunk_batch_answer", to_coordinator()},
      {"ack_batch",
       AckBatch{.from = kEncoder, .to = "thinker", .acks = {{ReqId{9}, 32}, {ReqId{10}, ~uint64_t{0}, true}}}},
      {"ack_batch_client", AckBatch{.from = kCoordinator, .to = "decode", .acks = {{ReqId{9}, 7}}}},
      {"abort_ack", AbortAck{.id = ReqId{~uint64_t{0}}, .from = kEncoder}},
      {"shutdown", Shutdown{.from = kCoordinator, .grace_ms = 5000}},
      {"register", Register{.self = sample_peer(), .reply_to = "tcp://127.0.0.1:5000", .spec_hash = ~uint64_t{0}}},
      {"welcome", welcome()},
      {"welcome_refused", refusal()},
      {"peers", Peers{.from = kCoordinator, .epoch = 3, .peers = {sample_peer(), other_peer()}}},
  };
}

std::string bytes_of(const Message& message) {
  auto frame = encode(message);
  EXPECT_TRUE(frame.ok()) << frame.status().to_string();
  return frame.ok() ? *frame : "";
}

TEST(PipelineCodec, FramesEqualTheOraclesBytes) { testing::expect_golden_frames(samples()); }

// docs/wire-protocol.md prints one of them byte by byte.
TEST(PipelineCodec, TheDocumentShowsTheOraclesBytes) {
  std::ifstream page(std::string(MILLRACE_SOURCE_DIR) + "/docs/wire-protocol.md");
  ASSERT_TRUE(page);
  constexpr std::size_t kHexColumns = 50;
  std::string shown;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("83 ")) inside = true;
    if (line.starts_with("```")) inside = false;
    if (!inside) continue;
    const std::string hex = line.substr(0, kHexColumns);
    for (std::size_t at = 0; at + 1 < hex.size() && hex[at] != ' '; at += 3) {
      shown += static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, 16));
    }
  }
  EXPECT_EQ(shown, testing::golden_frame("chunk_batch_end"));
}

TEST(PipelineCodec, FieldsComeBackAsTheyWere) {
  auto back = decode(testing::golden_frame("chunk_batch"));
  ASSERT_TRUE(back.ok());
  const auto& batch = std::get<ChunkBatch>(*back);
  EXPECT_EQ(batch.from, kEncoder);
  EXPECT_EQ(batch.to, "aggregate");
  ASSERT_EQ(batch.chunks.size(), 8u);
  EXPECT_EQ(batch.chunks[0].id, ReqId{9});
  EXPECT_EQ(batch.chunks[0].opening->route, kRoute);
  EXPECT_EQ(batch.chunks[0].opening->traceparent, testing::kTraceparent);
  EXPECT_EQ(batch.chunks[4].opening->traceparent, "");
  EXPECT_EQ(std::get<StreamValue>(batch.chunks[0].body).payload, in_message());
  EXPECT_EQ(std::get<StageResult>(batch.chunks[3].body).payload, tensors());
  EXPECT_EQ(std::get<TokenDelta>(batch.chunks[4].body).tokens, (std::vector<int32_t>{9, 10}));
  EXPECT_EQ(batch.chunks[4].opening->timeout_ms, -5);
  EXPECT_EQ(std::get<TextDelta>(batch.chunks[5].body).text, "zażółć");
  EXPECT_EQ(std::get<Failure>(batch.chunks[6].body), kFailure);
  back = decode(testing::golden_frame("peers"));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<Peers>(*back).peers, (std::vector<Peer>{sample_peer(), other_peer()}));
}

TEST(PipelineCodec, FieldsMayComeInAnySequence) {
  auto back = decode(testing::golden_frame("chunk_batch_end_reversed"));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(bytes_of(*back), testing::golden_frame("chunk_batch_end"));
  // A field that stands there twice, once in its order and once late; one that is missing.
  const std::string ack = testing::golden_frame("abort_ack");
  ASSERT_EQ(ack[6], '\x82') << "the body: a map of 2";
  std::string twice = ack + "\x01\x09";
  twice[6] = '\x83';
  back = decode(twice);
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.status().message().find("field 1 is repeated"), std::string::npos) << back.status().message();
  const std::string shutdown = testing::golden_frame("shutdown");
  std::string missing = shutdown.substr(0, shutdown.size() - 4);  // grace_ms
  missing[6] = '\x81';
  back = decode(missing);
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.status().message().find("field 2 is missing"), std::string::npos) << back.status().message();
}

TEST(PipelineCodec, TruncatedAndMutatedFramesAreRefusedOrComplete) {
  std::mt19937_64 random(5);
  for (const auto& [name, message] : samples()) {
    const std::string frame = bytes_of(message);
    testing::expect_truncations_refused(frame, name);
    for (int round = 0; round < 2000; ++round) {
      const std::string mutated = testing::mutated_frame(frame, random);
      auto back = decode(mutated);
      if (!back.ok()) continue;
      const std::string again = bytes_of(*back);
      EXPECT_LE(again.size(), mutated.size());
      auto twice = decode(again);
      ASSERT_TRUE(twice.ok());
      EXPECT_EQ(bytes_of(*twice), again);
    }
  }
}

// encode() refuses it with this message; so does validate() where threads pass the message by reference.
template <typename M>
void refused(M message, const std::function<void(M&)>& change, std::string_view part,
             StatusCode code = StatusCode::kInvalidArgument) {
  EXPECT_TRUE(encode(message).ok());
  change(message);
  const auto frame = encode(message);
  ASSERT_FALSE(frame.ok()) << part;
  EXPECT_EQ(frame.status().code(), code) << part;
  EXPECT_NE(frame.status().message().find(part), std::string::npos) << frame.status().message();
  EXPECT_TRUE(is_utf8(frame.status().message()));
  if (code == StatusCode::kInvalidArgument) {
    EXPECT_FALSE(validate(message).ok()) << part;
  }
}

TEST(PipelineCodec, ChunksHaveWhatTheirBodiesNeed) {
  const auto change = [](const ChunkBatch& batch, std::size_t i, std::function<void(Chunk&)> what, const char* part) {
    refused<ChunkBatch>(
        batch, [&](ChunkBatch& m) { what(m.chunks.at(i)); }, part);
  };
  change(
      to_stage(), 0, [](Chunk& c) { c.opening.reset(); }, "chunk 0 of the batch: chunk 0 lacks an opening");
  change(
      to_stage(), 1, [](Chunk& c) { c.opening = Opening{}; }, "chunk 1 of the batch: chunk 1 has an opening");
  change(
      to_stage(), 6, [](Chunk& c) { c.opening = Opening{}; }, "chunk 0 has an opening");
  change(
      to_coordinator(), 0, [](Chunk& c) { c.seq = 0, c.opening = Opening{}; }, "chunk 0 has an opening");
  change(
      to_stage(), 6, [](Chunk& c) { c.seq = 1; }, "seq is 1 of a chunk without a number");
  change(
      to_coordinator(), 4, [](Chunk& c) { c.seq = 7; }, "seq is 7 of a chunk without a number");
  change(
      to_stage(), 7, [](Chunk& c) { c.seq = 7; }, "seq is 7 of a chunk without a number");
  change(
      to_coordinator(), 0, [](Chunk& c) { c.body = StreamEnd{}; }, "the end of a stream is sent to the coordinator");
  change(
      to_coordinator(), 0, [](Chunk& c) { c.body = sample_tokens(); }, "token ids are sent to the coordinator");
  change(
      to_stage(), 6, [](Chunk& c) { c.body = InputsComplete{}; }, "wanted the coordinator");
  change(
      to_stage(), 6, [](Chunk& c) { std::get<Failure>(c.body).code = StatusCode::kOk; }, "failure has the code 0");
  change(
      to_coordinator(), 4,
      [](Chunk& c) {
        std::get<InputsComplete>(c.body).sources = {"a", "/b"};
      },
      "a source is \"/b\"");
  change(
      to_coordinator(), 4,
      [](Chunk& c) {
        std::get<InputsComplete>(c.body).sources = {"a", "a"};
      },
      "\"a\" is named twice");
  change(
      to_coordinator(), 0, [](Chunk& c) { std::get<StreamValue>(c.body).modality = "\xff"; }, "modality: byte 0xff");
  refused<ChunkBatch>(
      to_coordinator(),
      [](ChunkBatch& m) { std::get<InputsComplete>(m.chunks[4].body).sources.assign(kMaxSources + 1, "a"); },
      "65 elements; wanted at most 64", StatusCode::kTooLarge);
  refused<ChunkBatch>(
      stream_end(), [](ChunkBatch& m) { m.chunks.assign(kMaxBatchEntries + 1, m.chunks[0]); },
      "3: 4097 elements; wanted at most 4096", StatusCode::kTooLarge);
  refused<AckBatch>(
      {.from = kEncoder, .to = "a"}, [](AckBatch& m) { m.acks.resize(kMaxBatchEntries + 1); },
      "3: 4097 elements; wanted at most 4096", StatusCode::kTooLarge);
  refused<Welcome>(
      refusal(), [](Welcome& m) { m.refused->code = StatusCode::kOk; }, "refused has the code 0");
}

TEST(PipelineCodec, NamesOfStages) {
  const std::string longest(kMaxStageNameBytes, 'a');
  ChunkBatch message = to_stage();
  message.to = longest;
  EXPECT_TRUE(decode(bytes_of(message)).ok());
  refused<ChunkBatch>(
      message, [](ChunkBatch& m) { m.to += 'a'; }, "2: 65 bytes of text; wanted at most 64", StatusCode::kTooLarge);
  for (const std::string& name : {""s, "a b"s, "a/b"s, "%n"s, "a\0"s, "\xff"s, "ą"s, "a."s}) {
    refused<AckBatch>(
        {.from = kEncoder, .to = "a"}, [&](AckBatch& m) { m.to = name; }, "to is \"");
    if (!name.empty()) {  // the coordinator
      refused<ChunkBatch>(
          message, [&](ChunkBatch& m) { m.to = name; }, "to is \"");
    }
    refused<ChunkBatch>(
        message, [&](ChunkBatch& m) { m.from.stage = name; }, "from.stage is \"");
    refused<ChunkBatch>(
        message, [&](ChunkBatch& m) { m.chunks[0].opening->terminals = {name}; }, "a terminal is \"");
    refused<ChunkBatch>(
        message, [&](ChunkBatch& m) { std::get<StageResult>(m.chunks[3].body).payload.relay = name; }, "relay is \"");
  }
  refused<Submit>(
      sample_submit(),
      [](Submit& m) {
        m.terminals = {"a", "b", "a"};
      },
      "\"a\" is named twice");
  refused<Submit>(
      sample_submit(), [](Submit& m) { m.terminals.assign(kMaxTerminals + 1, "a"); },
      "4: 65 elements; wanted at most 64", StatusCode::kTooLarge);
  refused<AbortAck>(
      {.from = kEncoder}, [](AbortAck& m) { m.from.stage.clear(); }, "from.stage is \"\"");
  refused<Shutdown>(
      {.from = kCoordinator}, [](Shutdown& m) { m.from.stage = "a b"; }, "from.stage is \"a b\"");
}

TEST(PipelineCodec, PayloadsAreComplete) {
  const auto change = [](std::function<void(Payload&)> what, const char* part,
                         StatusCode code = StatusCode::kInvalidArgument) {
    refused<ChunkBatch>(
        to_stage(), [&](ChunkBatch& m) { what(std::get<StageResult>(m.chunks[3].body).payload); }, part, code);
    refused<ChunkBatch>(
        to_coordinator(), [&](ChunkBatch& m) { what(std::get<StreamValue>(m.chunks[0].body).payload); }, part, code);
  };
  change([](Payload& p) { p.tree.bytes.clear(); }, "tree has 0 bytes");
  change([](Payload& p) { p.relay.clear(); }, "relay is \"\"");
  change([](Payload& p) { p.descriptor.bytes.clear(); }, "descriptor has 0 bytes; wanted one for 2 parts");
  change([](Payload& p) { p.part_bytes[0] = 0; }, "part 0 has 0 bytes");
  change([](Payload& p) { p.part_bytes[1] = kMaxPartBytes + 1; }, "part 1 has 1099511627777 bytes");
  change([](Payload& p) { p.part_bytes.push_back(1); }, "part 2 is no tensor's");
  change([](Payload& p) { p.part_bytes.pop_back(); }, "tensor 1: part 1; wanted one below 1");
  change([](Payload& p) { p.tensors[1].offset = 65; }, "tensor 1: 4 bytes at offset 65 of part 1, which has 68");
  change([](Payload& p) { p.tensors[0].size = ~uint64_t{0}; }, "tensor 0: 18446744073709551615 bytes at offset 0");
  change([](Payload& p) { p.tensors[0].offset = ~uint64_t{0}; }, "at offset 18446744073709551615");
  change([](Payload& p) { p.tensors[2].part = 1; }, "tensor 2: part 1, offset 0 of a tensor without bytes");
  change([](Payload& p) { p.tensors[0].shape[1] = -3; }, "tensor 0: an extent is -3");
  change([](Payload& p) { p.tensors[0].dtype = "bf16"; }, "tensor 0: dtype is \"bf16\"");
  change([](Payload& p) { p.tensors[0].dtype.clear(); }, "tensor 0: dtype is \"\"");
  change([](Payload& p) { p.tensors[0].path = "\xc3("; }, "tensor 0: path: byte 0xc3 at offset 0; wanted UTF-8");
  change([](Payload& p) { p.tensors[0].shape.assign(9, 1); }, "9 elements; wanted at most 8", StatusCode::kTooLarge);
  change([](Payload& p) { p.tensors[0].path.assign(1025, 'x'); }, "1025 bytes of text", StatusCode::kTooLarge);
  change([](Payload& p) { p.tensors[0].dtype.assign(17, 'F'); }, "17 bytes of text", StatusCode::kTooLarge);
  change([](Payload& p) { p.tensors.resize(4097); }, "4097 elements; wanted at most 4096", StatusCode::kTooLarge);
  change([](Payload& p) { p.part_bytes.resize(4097); }, "4097 elements", StatusCode::kTooLarge);
  change([](Payload& p) { p.descriptor.bytes.assign(4097, 'd'); }, "4097 bytes; wanted at most 4096",
         StatusCode::kTooLarge);
  change([](Payload& p) { p.tree.bytes.assign(kMaxTreeBytes + 1, 't'); }, "16777217 bytes; wanted at most 16777216",
         StatusCode::kTooLarge);
  refused<Submit>(
      sample_submit(), [](Submit& m) { m.route[1].stage = "a stage"; }, "a stage of the route is \"a stage\"");
  refused<ChunkBatch>(
      to_stage(), [](ChunkBatch& m) { m.chunks[0].opening->route.assign(kMaxRouteHops + 1, kRoute[0]); },
      fmt::format("{} elements; wanted at most {}", kMaxRouteHops + 1, kMaxRouteHops).c_str(), StatusCode::kTooLarge);
  refused<Submit>(
      sample_submit(), [](Submit& m) { m.payload.relay = "shm"; },
      "relay \"shm\" and a descriptor of 0 bytes without a part");
  refused<Submit>(
      sample_submit(), [](Submit& m) { m.payload.descriptor.bytes = "d"; }, "a descriptor of 1 bytes");
}

TEST(PipelineCodec, SmallPartsAreInTheMessageOrInARelay) {
  Submit message = sample_submit();
  message.payload = in_message();
  const auto change = [&](std::function<void(Payload&)> what, const char* part,
                          StatusCode code = StatusCode::kInvalidArgument) {
    refused<Submit>(
        message, [&](Submit& m) { what(m.payload); }, part, code);
  };
  change([](Payload& p) { p.inline_bytes.bytes.pop_back(); }, "inline_bytes has 6 bytes for parts of 7");
  change([](Payload& p) { p.inline_bytes.bytes.push_back('x'); }, "inline_bytes has 8 bytes for parts of 7");
  change([](Payload& p) { p.relay = "shm"; }, "relay \"shm\" and a descriptor of 0 bytes beside inline_bytes");
  change([](Payload& p) { p.descriptor.bytes = "d"; }, "a descriptor of 1 bytes beside inline_bytes");
  change([](Payload& p) { p.inline_bytes.bytes.assign(kMaxInlineBytes + 1, 'x'); }, "1025 bytes; wanted at most 1024",
         StatusCode::kTooLarge);
  message.payload = no_tensors();
  change([](Payload& p) { p.inline_bytes.bytes = "x"; }, "inline_bytes has 1 bytes for parts of 0");
}

TEST(PipelineCodec, PeersAndText) {
  const Register base{.self = sample_peer(), .reply_to = "ipc:///x"};
  const auto change = [&](std::function<void(Register&)> what, const char* part,
                          StatusCode code = StatusCode::kInvalidArgument) {
    refused<Register>(
        base, [&](Register& m) { what(m); }, part, code);
  };
  change([](Register& m) { m.self.stage = "a b"; }, "self: stage is \"a b\"");
  change([](Register& m) { m.self.pid = -1; }, "self: pid is -1");
  change([](Register& m) { m.self.host = "\xff"; }, "self: host: byte 0xff");
  change([](Register& m) { m.self.boot = "a\x80"; }, "self: boot: byte 0x80 at offset 1");
  change([](Register& m) { m.self.endpoint = "\xf8"; }, "self: endpoint: byte 0xf8");
  change([](Register& m) { m.reply_to = "\xed\xa0\x80"; }, "reply_to: byte 0xed");
  change([](Register& m) { m.self.relays[1].relay = "t/p"; }, "self: a relay is \"t/p\"");
  change([](Register& m) { m.reply_to.assign(513, 'x'); }, "513 bytes of text", StatusCode::kTooLarge);
  change([](Register& m) { m.self.relays.resize(17); }, "17 elements; wanted at most 16", StatusCode::kTooLarge);
  change([](Register& m) { m.self.relays[0].address.bytes.assign(1025, 'x'); }, "1025 bytes", StatusCode::kTooLarge);
  refused<Peers>(
      {.from = kCoordinator, .peers = {sample_peer(), other_peer()}}, [](Peers& m) { m.peers[1].stage = "?"; },
      "peer 1: stage is \"?\"");
  refused<Peers>(
      {.from = kCoordinator}, [](Peers& m) { m.peers.assign(kMaxPeers + 1, other_peer()); },
      "1025 elements; wanted at most 1024", StatusCode::kTooLarge);
  refused<Shutdown>(
      {.from = kCoordinator}, [](Shutdown& m) { m.grace_ms = -1; }, "grace_ms is -1");
  refused<Welcome>(
      welcome(), [](Welcome& m) { m.lease_ms = -1; }, "lease_ms is -1");
}

// decode() refuses by itself what an untrusted peer may send, before it reads on.
TEST(PipelineCodec, UntrustedFramesAreHeldToTheSameLimits) {
  const auto changed = [](const std::string& name, const std::string& from, const std::string& to, const char* part) {
    std::string frame = testing::golden_frame(name);
    const std::size_t at = frame.find(from);
    ASSERT_NE(at, std::string::npos) << name;
    frame.replace(at, from.size(), to);
    const auto back = decode(frame);
    ASSERT_FALSE(back.ok()) << part;
    EXPECT_EQ(back.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(back.status().message().find(part), std::string::npos) << back.status().message();
  };
  const std::string longer = "\xd9\x41" + std::string(65, 'a');
  changed("chunk_batch_end",
          "\xad"
          "image_encoder",
          longer, "type 18: 1: 2: a value of 65 bytes; wanted at most 64");
  changed("chunk_batch_end",
          "\xad"
          "image_encoder",
          "\xad"
          "image encoder",
          "from.stage is \"image encoder\"");
  changed("chunk_batch_end", "\x81\x03\x80", "\x81\x08\x80", "body 8 is unknown; wanted one below 8");
  changed("chunk_batch_end", "\x81\x03\x80", "\x82\x03\x80\x03\x80", "2 bodies; wanted 1");
  changed("chunk_batch_end", "\x81\x03\x80", "\x80", "0 bodies; wanted 1");
  changed("chunk_batch_end", "\x81\x03\x80", "\x81\x06\x81\x01\x90", "seq is 300 of a chunk without a number");
  changed("chunk_batch_end", "\x03\x91", "\x03\xdc\x10\x01", "3: 4097 elements; wanted at most 4096");
  changed("chunk_batch", "no room",
          "no\xff"
          "room",
          "a failure's message is no UTF-8");
  changed("chunk_batch", "\x05\x82\x01\x05", "\x05\x82\x01\0"s, "failure has the code 0");
  changed("chunk_batch", "\x05\x82\x01\x05", "\x05\x82\x01\x0d", "13 is no known value; wanted at most 12");
  changed("chunk_batch", "\x93\x86", "\xdc\x10\x01\x86", "2: 4097 elements; wanted at most 4096");
  changed("chunk_batch", "\x92\x0c\x44", "\x92\x0c\x43", "4 bytes at offset 64 of part 1, which has 67");
  changed("peers", "\x03\x92", "\x03\xdc\x04\x01", "3: 1025 elements; wanted at most 1024");
}

TEST(PipelineCodec, AFailureAlwaysGetsThrough) {
  ChunkBatch batch{.from = kEncoder, .chunks = {chunk(0, kFailure)}};
  auto& failure = std::get<Failure>(batch.chunks[0].body);
  const auto read = [](const Result<Message>& m) { return std::get<Failure>(std::get<ChunkBatch>(*m).chunks[0].body); };
  failure.message = std::string(kMaxErrorBytes - 1, 'x') + "ż and more";
  auto back = decode(bytes_of(batch));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(read(back).message, std::string(kMaxErrorBytes - 1, 'x'));
  failure.message = "read \xff\xfe instead";
  back = decode(bytes_of(batch));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(read(back), (Failure{kFailure.code, "read ?? instead"}));
  EXPECT_EQ(failure.message, "read \xff\xfe instead");
  failure.message = std::string(kMaxErrorBytes + 1, '\x80');
  back = decode(bytes_of(batch));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(read(back).message, std::string(kMaxErrorBytes, '?'));
}

}  // namespace
}  // namespace millrace::wire
