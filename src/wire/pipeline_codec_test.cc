// The messages of pipelines: the same bytes as the oracle's, back as they were, and what both sides refuse.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <random>

#include "wire/codec.h"
#include "wire/limits.h"
#include "wire/utf8.h"

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
          .relays = {{"shm", {"\0shm"s}}, {"tcp", {"[::1]:4000"}}}};
}

Peer other_peer() {
  return {.stage = "decode", .incarnation = 1, .endpoint = "tcp://[::1]:5001", .pid = 1, .up = false};
}

const std::vector<RouteHop> kRoute = {{"decode", 3, 7}, {"code2wav"}};

DataReady data_ready(DataKind kind) {
  DataReady message{.id = ReqId{9}, .from = kEncoder, .to = "decode", .kind = kind};
  if (kind == DataKind::kPayload) message.payload = tensors();
  if (kind == DataKind::kChunk) message.chunk_id = 299, message.payload = no_tensors();
  if (kind == DataKind::kDone) message.chunk_id = 300, message.terminals = {"decode"}, message.timeout_ms = 1500;
  if (kind == DataKind::kError) message.failure = kFailure, message.timeout_ms = -5;
  return message;
}

DataReady payload_ready() {
  DataReady message = data_ready(DataKind::kPayload);
  message.to = "aggregate";
  message.terminals = {"decode"};
  message.route = kRoute;
  message.timeout_ms = 1500;
  return message;
}

Submit sample_submit() {
  return {.id = ReqId{9},
          .from = kCoordinator,
          .payload = no_tensors(),
          .terminals = {"decode", "code2wav"},
          .timeout_ms = 30000,
          .route = kRoute};
}

StreamOut sample_stream_out() {
  return {.id = ReqId{9}, .from = kEncoder, .chunk_id = 4294967296, .modality = "audio", .payload = tensors()};
}

Complete completed() { return {.id = ReqId{9}, .from = kEncoder, .result = no_tensors(), .chunks = 41}; }
Complete failed() { return {.id = ReqId{9}, .from = kEncoder, .failure = kFailure}; }

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
      {"data_ready_payload", payload_ready()},
      {"data_ready_chunk", data_ready(DataKind::kChunk)},
      {"data_ready_done", data_ready(DataKind::kDone)},
      {"data_ready_error", data_ready(DataKind::kError)},
      {"data_ack_payload", DataAck{.id = ReqId{9}, .from = kEncoder}},
      {"data_ack_chunks", DataAck{.id = ReqId{9}, .from = kEncoder, .to = "thinker", .chunks = 32}},
      {"stream_out", sample_stream_out()},
      {"complete", completed()},
      {"complete_failure", failed()},
      {"abort_ack", AbortAck{.id = ReqId{~uint64_t{0}}, .from = kEncoder}},
      {"gathered", Gathered{.id = ReqId{9}, .from = kEncoder, .sources = {"thinker", "mm_aggregate"}}},
      {"shutdown", Shutdown{.from = kCoordinator, .grace_ms = 5000}},
      {"register", Register{.self = sample_peer(), .reply_to = "tcp://127.0.0.1:5000", .spec_hash = ~uint64_t{0}}},
      {"welcome", welcome()},
      {"welcome_refused", refusal()},
      {"peers", Peers{.from = kCoordinator, .epoch = 3, .peers = {sample_peer(), other_peer()}}},
  };
}

std::string golden(const std::string& name) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/wire/" + name + ".msgpack", std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string bytes_of(const Message& message) {
  auto frame = encode(message);
  EXPECT_TRUE(frame.ok()) << frame.status().to_string();
  return frame.ok() ? *frame : "";
}

TEST(PipelineCodec, FramesEqualTheOraclesBytes) {
  for (const auto& [name, message] : samples()) {
    EXPECT_EQ(bytes_of(message), golden(name)) << name;
    auto back = decode(golden(name));
    ASSERT_TRUE(back.ok()) << name << ": " << back.status().to_string();
    EXPECT_EQ(back->index(), message.index()) << name;
    EXPECT_EQ(bytes_of(*back), golden(name)) << name;
  }
}

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
  EXPECT_EQ(shown, golden("data_ready_done"));
}

TEST(PipelineCodec, FieldsComeBackAsTheyWere) {
  auto back = decode(golden("data_ready_payload"));
  ASSERT_TRUE(back.ok());
  const auto& data = std::get<DataReady>(*back);
  EXPECT_EQ(data.id, ReqId{9});
  EXPECT_EQ(data.from, kEncoder);
  EXPECT_EQ(data.to, "aggregate");
  EXPECT_EQ(*data.payload, tensors());
  EXPECT_FALSE(data.chunk_id || data.failure);
  back = decode(golden("peers"));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<Peers>(*back).peers, (std::vector<Peer>{sample_peer(), other_peer()}));
  back = decode(golden("data_ready_error"));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*std::get<DataReady>(*back).failure, kFailure);
  EXPECT_EQ(std::get<DataReady>(*back).timeout_ms, -5);
}

TEST(PipelineCodec, FieldsMayComeInAnyOrder) {
  auto back = decode(golden("data_ready_done_reversed"));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(bytes_of(*back), golden("data_ready_done"));
  // A field that stands there twice, once in its order and once late; one that is missing.
  const std::string ack = golden("data_ack_payload");
  ASSERT_EQ(ack[6], '\x84');  // the body: a map of 4
  std::string twice = ack + "\x01\x09";
  twice[6] = '\x85';
  back = decode(twice);
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.status().message().find("field 1 is repeated"), std::string::npos) << back.status().message();
  std::string missing = ack.substr(0, ack.size() - 2);
  missing[6] = '\x83';
  back = decode(missing);
  ASSERT_FALSE(back.ok());
  EXPECT_NE(back.status().message().find("field 4 is missing"), std::string::npos) << back.status().message();
}

TEST(PipelineCodec, TruncatedAndMutatedFramesAreRefusedOrWhole) {
  std::mt19937_64 random(5);
  for (const auto& [name, message] : samples()) {
    const std::string frame = bytes_of(message);
    for (std::size_t size = 0; size < frame.size(); ++size) {
      EXPECT_FALSE(decode(std::span(frame.data(), size)).ok()) << name << " cut at " << size;
    }
    for (int round = 0; round < 2000; ++round) {
      std::string mutated = frame;
      for (auto flips = 1 + random() % 4; flips > 0; --flips) {
        mutated[random() % mutated.size()] = static_cast<char>(random());
      }
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

// encode() refuses it and says so; so does validate() where threads pass the message by reference.
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

TEST(PipelineCodec, KindsHaveWhatTheyHave) {
  for (const DataKind kind : {DataKind::kPayload, DataKind::kChunk, DataKind::kDone, DataKind::kError}) {
    const bool has_chunk = kind == DataKind::kChunk || kind == DataKind::kDone;
    const bool has_payload = kind == DataKind::kPayload || kind == DataKind::kChunk;
    const auto change = [&](auto what, const char* part) { refused<DataReady>(data_ready(kind), what, part); };
    if (has_chunk) {
      change([](DataReady& m) { m.chunk_id.reset(); }, "lacks its chunk_id");
    } else {
      change([](DataReady& m) { m.chunk_id = 0; }, "has a chunk_id; wanted it to have none");
    }
    if (has_payload) {
      change([](DataReady& m) { m.payload.reset(); }, "lacks its payload");
    } else {
      change([](DataReady& m) { m.payload = no_tensors(); }, "has a payload");
    }
    if (kind == DataKind::kError) {
      change([](DataReady& m) { m.failure.reset(); }, "lacks its failure");
      change([](DataReady& m) { m.failure->code = StatusCode::kOk; }, "failure has the code 0");
    } else {
      change([](DataReady& m) { m.failure = kFailure; }, "has a failure");
    }
  }
  refused<Complete>(
      completed(), [](Complete& m) { m.failure = kFailure; }, "has both");
  refused<Complete>(
      completed(), [](Complete& m) { m.result.reset(); }, "has neither");
  refused<Complete>(
      failed(), [](Complete& m) { m.failure->code = StatusCode::kOk; }, "code 0");
  refused<Welcome>(
      refusal(), [](Welcome& m) { m.refused->code = StatusCode::kOk; }, "refused has the code 0");
}

TEST(PipelineCodec, NamesOfStages) {
  const std::string longest(kMaxStageNameBytes, 'a');
  DataReady message = payload_ready();
  message.to = longest;
  EXPECT_TRUE(decode(bytes_of(message)).ok());
  refused<DataReady>(
      message, [](DataReady& m) { m.to += 'a'; }, "3: 65 bytes of text; wanted at most 64", StatusCode::kTooLarge);
  for (const std::string& name : {""s, "a b"s, "a/b"s, "%n"s, "a\0"s, "\xff"s, "ą"s, "a."s}) {
    refused<DataReady>(
        message, [&](DataReady& m) { m.to = name; }, "to is \"");
    refused<DataReady>(
        message, [&](DataReady& m) { m.from.stage = name; }, "from.stage is \"");
    refused<DataReady>(
        message, [&](DataReady& m) { m.terminals = {name}; }, "a terminal is \"");
    refused<DataReady>(
        message, [&](DataReady& m) { m.payload->relay = name; }, "relay is \"");
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
  refused<Gathered>(
      {.from = kEncoder}, [](Gathered& m) { m.from.stage.clear(); }, "from.stage is \"\"");
  refused<Gathered>(
      {.from = kEncoder},
      [](Gathered& m) {
        m.sources = {"a", "/b"};
      },
      "a source is \"/b\"");
  refused<Gathered>(
      {.from = kEncoder},
      [](Gathered& m) {
        m.sources = {"a", "a"};
      },
      "\"a\" is named twice");
  refused<Gathered>(
      {.from = kEncoder}, [](Gathered& m) { m.sources.assign(kMaxSources + 1, "a"); },
      "3: 65 elements; wanted at most 64", StatusCode::kTooLarge);
  refused<StreamOut>(
      sample_stream_out(), [](StreamOut& m) { m.from.stage.clear(); }, "from.stage is \"\"");
  refused<Shutdown>(
      {.from = kCoordinator}, [](Shutdown& m) { m.from.stage = "a b"; }, "from.stage is \"a b\"");
  refused<DataAck>(
      {.from = kEncoder}, [](DataAck& m) { m.to = "a:b"; }, "to is \"a:b\"");
}

TEST(PipelineCodec, PayloadsAreWhole) {
  const auto change = [](std::function<void(Payload&)> what, const char* part,
                         StatusCode code = StatusCode::kInvalidArgument) {
    refused<DataReady>(
        payload_ready(), [&](DataReady& m) { what(*m.payload); }, part, code);
    refused<StreamOut>(
        sample_stream_out(), [&](StreamOut& m) { what(*m.payload); }, part, code);
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
  refused<DataReady>(
      payload_ready(), [](DataReady& m) { m.route.assign(kMaxRouteHops + 1, kRoute[0]); },
      fmt::format("{} elements; wanted at most {}", kMaxRouteHops + 1, kMaxRouteHops).c_str(), StatusCode::kTooLarge);
  refused<Submit>(
      sample_submit(), [](Submit& m) { m.payload.relay = "shm"; },
      "relay \"shm\" and a descriptor of 0 bytes without a part");
  refused<Submit>(
      sample_submit(), [](Submit& m) { m.payload.descriptor.bytes = "d"; }, "a descriptor of 1 bytes");
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
  refused<StreamOut>(
      sample_stream_out(), [](StreamOut& m) { m.modality = "\xff"; }, "modality: byte 0xff");
  refused<Shutdown>(
      {.from = kCoordinator}, [](Shutdown& m) { m.grace_ms = -1; }, "grace_ms is -1");
  refused<Welcome>(
      welcome(), [](Welcome& m) { m.lease_ms = -1; }, "lease_ms is -1");
}

// decode() refuses by itself what a foreign peer may send, before it reads on.
TEST(PipelineCodec, ForeignFramesAreHeldToTheSameLimits) {
  const auto changed = [](const std::string& name, const std::string& from, const std::string& to, const char* part) {
    std::string frame = golden(name);
    const std::size_t at = frame.find(from);
    ASSERT_NE(at, std::string::npos) << name;
    frame.replace(at, from.size(), to);
    const auto back = decode(frame);
    ASSERT_FALSE(back.ok()) << part;
    EXPECT_EQ(back.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(back.status().message().find(part), std::string::npos) << back.status().message();
  };
  const std::string longer = "\xd9\x41" + std::string(65, 'a');
  changed("data_ready_done",
          "\xad"
          "image_encoder",
          longer, "type 8: 2: 2: a value of 65 bytes; wanted at most 64");
  changed("data_ready_done",
          "\xad"
          "image_encoder",
          "\xad"
          "image encoder",
          "from.stage is \"image encoder\"");
  changed("data_ready_done", "\x04\x02", "\x04\x04", "4: 4 is no known value; wanted at most 3");
  changed("data_ready_done", "\x05\xcd\x01\x2c", "\x05\xc0", "a message of kind 2 lacks its chunk_id");
  changed("data_ready_error", "no room",
          "no\xff"
          "room",
          "a failure's message is no UTF-8");
  changed("data_ready_error", "\x07\x82\x01\x05", "\x07\x82\x01\0"s, "failure has the code 0");
  changed("data_ready_error", "\x07\x82\x01\x05", "\x07\x82\x01\x0d", "13 is no known value; wanted at most 12");
  changed("data_ready_payload", "\x93\x86", "\xdc\x10\x01\x86", "2: 4097 elements; wanted at most 4096");
  changed("data_ready_payload", "\x92\x0c\x44", "\x92\x0c\x43", "4 bytes at offset 64 of part 1, which has 67");
  changed("complete", "\x04\xc0", "\x04\x82\x01\x05\x02\xa1x", "a completion has both");
  changed("peers", "\x03\x92", "\x03\xdc\x04\x01", "3: 1025 elements; wanted at most 1024");
}

TEST(PipelineCodec, NewsOfAFailureAlwaysGetsThrough) {
  Complete message = failed();
  message.failure->message = std::string(kMaxErrorBytes - 1, 'x') + "ż and more";
  auto back = decode(bytes_of(message));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(std::get<Complete>(*back).failure->message, std::string(kMaxErrorBytes - 1, 'x'));
  message.failure->message = "read \xff\xfe instead";
  back = decode(bytes_of(message));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*std::get<Complete>(*back).failure, (Failure{kFailure.code, "read ?? instead"}));
  EXPECT_EQ(message.failure->message, "read \xff\xfe instead");
  message.failure->message = std::string(kMaxErrorBytes + 1, '\x80');
  back = decode(bytes_of(message));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(std::get<Complete>(*back).failure->message, std::string(kMaxErrorBytes, '?'));
}

}  // namespace
}  // namespace millrace::wire
