// The messages of a transfer of KV pages: the same bytes as the oracle's, back as they were, and what both ends refuse.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "wire/codec.h"
#include "wire/testing/frames.h"
#include "wire/testing/samples.h"

namespace millrace::wire {
namespace {

const TransferId kTransfer{"xfer-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"};

KvWant sample_want() {
  return {.id = kTransfer,
          .reply_to = "ipc:///run/millrace/decode-0",
          .format = {.model_hash = 0xFEDCBA9876543210,
                     .weights_checksum = 0x0123456789ABCDEF,
                     .page_size = 2,
                     .page_bytes = 4,
                     .kv_dtype = "bf16",
                     .isa = "amx"},
          .extra_key = "tenant",
          .tokens = {1, 2, 3, 4, 5, 6},
          .from_page = 1,
          .reader = {.stage = "decode",
                     .replica = 1,
                     .incarnation = 7,
                     .host = "gpu-host",
                     .boot = "3f6a",
                     .pid = 4242,
                     .relays = {{"shm", {"\x01\x02"}}}},
          .traceparent = testing::kTraceparent};
}

KvPart sample_part() {
  return {.id = kTransfer,
          .number = 3,
          .first_page = 1,
          .pages = 2,
          .last = true,
          .checksum = 0x0123456789ABCDEF,
          .bytes = {std::string("\0\1\2\3\xff\xfe\xfd\xfc", 8)},
          .layers = 2};
}

KvPart sample_relayed_part() {
  KvPart part = sample_part();
  part.bytes.bytes.clear();
  part.relay = "shm";
  part.descriptor.bytes = "\xf0\x0f";
  part.first_layer = 3;
  part.layers = 1;
  return part;
}

const std::vector<std::pair<std::string, Message>> kTransferSamples = {
    {"kv_want", sample_want()},
    {"kv_part", sample_part()},
    {"kv_part_relayed", sample_relayed_part()},
    {"kv_taken", KvTaken{kTransfer, 4, true, "tcp://[::1]:5001"}},
    {"kv_end", KvEnd{kTransfer, {}}},
    {"kv_end_failed",
     KvEnd{kTransfer, Failure{StatusCode::kResourceExhausted, "4096 transfers are open; the limit is 4096"}}}};

TEST(TransferCodec, FramesEqualTheOraclesBytesAndComeBack) {
  testing::expect_golden_frames(kTransferSamples);
  const auto want = std::get<KvWant>(*decode(testing::golden_frame("kv_want")));
  EXPECT_EQ(want.format, sample_want().format);
  EXPECT_EQ(want.tokens, sample_want().tokens);
}

TEST(TransferCodec, TruncatedAndMutatedFramesAreRefusedOrAreMessages) {
  std::mt19937_64 random(12);
  for (const auto& [name, message] : kTransferSamples) {
    const std::string frame = testing::golden_frame(name);
    testing::expect_refused_or_messages(frame, name, random, 3000);
  }
}

void expect_refusal(const Message& message, std::string_view part) {
  const auto frame = encode(message);
  ASSERT_FALSE(frame.ok()) << part;
  EXPECT_NE(frame.status().message().find(part), std::string::npos) << frame.status().message();
}

TEST(TransferCodec, MessagesWhoseNumbersDisagreeAreRefused) {
  const std::vector<std::pair<std::function<void(KvWant&)>, std::string>> wants = {
      {[](KvWant& w) { w.id.text = ""; }, "id is \"\"; wanted 1 to 128 letters, digits, '-' or '_'"},
      {[](KvWant& w) { w.id.text = "a b"; }, "id is \"a b\"; wanted"},
      {[](KvWant& w) { w.id.text = std::string(129, 'a'); }, "129 bytes of text; wanted at most 128"},
      {[](KvWant& w) { w.reply_to.clear(); }, "reply_to is empty"},
      {[](KvWant& w) { w.format.page_size = 0; }, "page_size is 0; wanted at least 1"},
      {[](KvWant& w) { w.tokens.pop_back(); }, "5 tokens; wanted those of complete pages of 2"},
      {[](KvWant& w) { w.tokens.clear(); }, "0 tokens; wanted"},
      {[](KvWant& w) { w.traceparent.back() = '0'; }, "traceparent is \"00-0af"},
      {[](KvWant& w) { w.from_page = -1; }, "from_page is -1"},
      {[](KvWant& w) { w.from_page = 3; }, "from_page is 3; wanted below 3"},
  };
  for (const auto& [change, part] : wants) {
    KvWant want = sample_want();
    change(want);
    expect_refusal(want, part);
  }
  KvPart part = sample_part();
  part.pages = 0;
  expect_refusal(part, "0 pages with 8 bytes");
  part = sample_part();
  part.first_page = -1;
  expect_refusal(part, "first_page is -1");
  part = sample_part();
  part.first_layer = -1;
  expect_refusal(part, "first_layer is -1");
  part = sample_part();
  part.layers = 0;
  expect_refusal(part, "layers is 0; wanted at least 1");
  part = sample_part();
  part.bytes.bytes.clear();
  expect_refusal(part, "2 pages with 0 bytes and a descriptor of 0; wanted at least 1 page, with bytes alone");
  part = sample_part();
  part.descriptor.bytes = "x";
  expect_refusal(part, "2 pages with 8 bytes and a descriptor of 1; wanted at least 1 page, with bytes alone");
  part.relay = "shm";
  expect_refusal(part, "2 pages with 8 bytes and a descriptor of 1; wanted at least 1 page, with a descriptor alone");
  part.relay = "../x";
  expect_refusal(part, "relay is \"../x\"");
  expect_refusal(KvTaken{{"x/y"}, 1, false, "ipc:///d"}, "id is \"x/y\"");
  expect_refusal(KvTaken{kTransfer, 1, false, ""}, "reply_to is empty");
  expect_refusal(KvEnd{kTransfer, Failure{StatusCode::kOk, ""}}, "failure has the code 0");
}

TEST(TransferCodec, TheChecksumIsOfAllThatAPartHas) {
  const KvPart part = sample_part();
  const std::vector<std::function<void(KvPart&)>> changes = {
      [](KvPart& p) { p.id.text[5] = '1'; }, [](KvPart& p) { ++p.number; },
      [](KvPart& p) { ++p.first_page; },     [](KvPart& p) { ++p.pages; },
      [](KvPart& p) { p.last = false; },     [](KvPart& p) { p.bytes.bytes += 'x'; },
      [](KvPart& p) { p.relay += 'x'; },     [](KvPart& p) { p.descriptor.bytes += 'x'; },
      [](KvPart& p) { ++p.first_layer; },    [](KvPart& p) { ++p.layers; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    KvPart changed = part;
    changes[i](changed);
    EXPECT_NE(kv_checksum(changed), kv_checksum(part)) << i;
  }
  for (std::size_t bit = 0; bit < 8 * part.bytes.bytes.size(); ++bit) {
    KvPart flipped = part;
    flipped.bytes.bytes[bit / 8] = static_cast<char>(flipped.bytes.bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(kv_checksum(flipped), kv_checksum(part)) << bit;
  }
}

}  // namespace
}  // namespace millrace::wire
