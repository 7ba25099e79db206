// Headers, proofs, addresses and part maps, by themselves. Expected bytes come from tests/oracles/relay_tcp.py.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>

#include "relay/session/frame.h"
#include "relay/session/part_map.h"
#include "relay/session/receive_pool.h"
#include "relay/session/secret.h"
#include "relay/tcp/address.h"
#include "relay/tcp/outgoing_frame.h"

namespace millrace::tcp {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) text += fmt::format("{:02x}", static_cast<int>(b));
  return text;
}

std::map<std::string, std::string> golden() {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/relay/tcp.txt");
  std::map<std::string, std::string> lines;
  for (std::string name, value; file >> name >> value;) lines[name] = value;
  return lines;
}

Header make(FrameType type, uint8_t flags, uint32_t length, uint32_t code, std::array<uint64_t, 5> rest) {
  return {kVersion, type, flags, length, code, rest[0], rest[1], rest[2], rest[3], rest[4]};
}

std::map<std::string, Header> headers() {
  return {{"request", make(FrameType::kRequest, 1, 16, 0, {7, 0x1122334455667788, 9, 4u << 20, 4096})},
          {"data", make(FrameType::kData, 1, 524288, 0, {UINT64_MAX, 1ull << 63, 3, (1ull << 40) + 1, 0})},
          {"refuse", make(FrameType::kRefuse, 0, 0, 8, {1, 0, 2, 0, 1})},
          {"ping", make(FrameType::kPing, 0, 0, 0, {})}};
}

TEST(TcpFrame, HeadersAreTheOraclesBytes) {
  const auto lines = golden();
  ASSERT_EQ(lines.size(), 6u);
  for (const auto& [name, header] : headers()) {
    const HeaderBytes bytes = encode(header);
    EXPECT_EQ(hex(std::span(bytes).first(56)), lines.at(name)) << name;
    const Result<Header> back = decode(bytes);
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(*back, header) << name;
  }
}

TEST(TcpFrame, HashIsXxh3) {
  EXPECT_EQ(hash64({}), 0x2D06800538D394C2u);  // the published value of no bytes at seed 0
  Hasher parts;
  const std::string text(100'000, 'm');
  const auto bytes = std::as_bytes(std::span(text));
  parts.add(bytes.first(7));
  parts.add(bytes.subspan(7, 65'536));
  parts.add(bytes.subspan(65'543));
  EXPECT_EQ(parts.digest(), hash64(bytes));
}

TEST(TcpFrame, EachFlippedBitIsRefused) {
  const HeaderBytes good = encode(headers().at("request"));
  for (std::size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    HeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const Result<Header> back = decode(bad);
    ASSERT_FALSE(back.ok()) << "bit " << bit;
    const bool version = bit / 8 == 4 || bit / 8 == 5;
    EXPECT_EQ(back.status().code(), version ? StatusCode::kUnsupported : StatusCode::kInvalidArgument) << "bit " << bit;
  }
}

TEST(TcpFrame, FieldsOutOfRangeAreRefused) {
  const Header request = headers().at("request");
  const auto refused = [](Header header) { return !decode(encode(header)).ok(); };
  Header h = request;
  h.length = 15;
  EXPECT_TRUE(refused(h));
  h = request;
  h.length = UINT32_MAX;
  EXPECT_TRUE(refused(h));
  h = headers().at("data");
  h.length = kMaxDataBytes + 1;
  EXPECT_TRUE(refused(h));
  h = headers().at("ping");
  h.length = 1;
  EXPECT_TRUE(refused(h));
  h = request;
  h.type = static_cast<FrameType>(0);
  EXPECT_TRUE(refused(h));
  h.type = static_cast<FrameType>(15);
  EXPECT_TRUE(refused(h));
  h = request;
  for (const uint8_t flag : {kFlagAnswer, kFlagWriter, uint8_t{16}}) {
    h.flags = flag;
    EXPECT_TRUE(refused(h));
  }
  h = request;
  h.code = 13;
  EXPECT_TRUE(refused(h));
}

TEST(TcpFrame, ProofsAreTheOracles) {
  std::string secret;
  for (char c = 0; c < 32; ++c) secret += c;
  secret += "more";
  Transcript t;
  for (std::size_t i = 0; i < kNonceBytes; ++i) {
    t.reader_nonce[i] = static_cast<std::byte>(100 + i);
    t.writer_nonce[i] = static_cast<std::byte>(200 + i);
  }
  t.reader_instance = 0x0102030405060708;
  t.writer_instance = 0xF1F2F3F4F5F6F7F8;
  t.reader_address = "[::1]:7000#0102030405060708";
  const auto lines = golden();
  const Proof reader = prove(secret, Prover::kReader, t);
  const Proof writer = prove(secret, Prover::kWriter, t);
  EXPECT_EQ(hex(reader), lines.at("proof_reader"));
  EXPECT_EQ(hex(writer), lines.at("proof_writer"));
  EXPECT_TRUE(same_proof(reader, reader));
  EXPECT_FALSE(same_proof(reader, writer));
  EXPECT_FALSE(same_proof({}, reader));
}

TEST(TcpFrame, Addresses) {
  for (const char* text : {"127.0.0.1:0", "[::1]:7000", "10.0.0.7:65535"}) {
    const Result<SocketAddress> address = parse_host_port(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(address->to_string(), text);
  }
  for (const char* text : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "localhost:1",
                           "::1:1", "[::1]", "[]:1", "[127.0.0.1]:1", "127.0.0.1:1 ", "1.2.3:4"}) {
    EXPECT_FALSE(parse_host_port(text).ok()) << text;
  }
  EXPECT_TRUE(parse_host_port("127.9.9.9:1")->loopback());
  EXPECT_TRUE(parse_host_port("[::ffff:127.0.0.1]:1")->loopback());
  EXPECT_FALSE(parse_host_port("10.0.0.1:1")->loopback());
  EXPECT_TRUE(parse_host_port("0.0.0.0:1")->wildcard());
  EXPECT_TRUE(parse_host_port("[::]:1")->wildcard());
  const std::string name = format_instance(*parse_host_port("[::1]:7"), 0xAB);
  EXPECT_EQ(name, "[::1]:7#00000000000000ab");
  EXPECT_EQ(parse_instance(name)->instance, 0xABu);
  for (const char* text : {"", "[::1]:7", "[::1]:7#ab", "[::1]:0#00000000000000ab", "x#00000000000000ab"}) {
    EXPECT_FALSE(parse_instance(text).ok()) << text;
  }
}

// Against the same bytes laid end to end.
TEST(TcpFrame, PartMapIsTheBytesEndToEnd) {
  std::vector<std::string> parts = {"", "a", "bcdefgh", "", "", "ij", "k", ""};
  std::string all;
  PartMap map;
  for (std::string& part : parts) {
    map.add(reinterpret_cast<std::byte*>(part.data()), part.size());
    all += part;
  }
  ASSERT_EQ(map.total(), all.size());
  for (std::size_t from = 0; from <= all.size(); ++from) {
    for (std::size_t size = 0; from + size <= all.size(); ++size) {
      for (const std::size_t capacity : {1u, 2u, 64u}) {
        std::vector<iovec> ranges(capacity);
        const std::size_t count = map.fill(from, size, ranges);
        std::string seen;
        for (std::size_t i = 0; i < count; ++i) seen.append(static_cast<char*>(ranges[i].iov_base), ranges[i].iov_len);
        ASSERT_EQ(seen, all.substr(from, std::min(size, seen.size())));
        if (capacity == 64) {
          ASSERT_EQ(seen.size(), size);
        }
        ASSERT_TRUE(size == 0 || !seen.empty());
      }
    }
  }
}

// However a frame is cut, and wherever it loses its put: the same bytes come out.
TEST(TcpFrame, OutgoingFramesCutAnywhere) {
  std::string payload(20'000, ' ');
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 31 + i / 256);
  struct Counter final : HoldOwner {
    void release(const std::shared_ptr<Put>&) override { ++released; }
    int released = 0;
  };
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, kHashFirstBytes, payload.size()}) {
    const auto put = std::make_shared<Put>();
    PartMap& map = put->map;
    map.add(reinterpret_cast<std::byte*>(payload.data()), length / 3);
    map.add(reinterpret_cast<std::byte*>(payload.data()) + length / 3, length - length / 3);
    Header header = headers().at("data");
    header.length = static_cast<uint32_t>(length);
    header.offset = 0;
    const HeaderBytes head = encode(header);
    std::array<std::byte, 8> trailer{};
    store_u64(trailer.data(), hash64(std::as_bytes(std::span(payload).first(length))));
    const std::string expected = std::string(reinterpret_cast<const char*>(head.data()), head.size()) +
                                 payload.substr(0, length) +
                                 std::string(reinterpret_cast<const char*>(trailer.data()), trailer.size());
    for (const std::size_t step : {std::size_t{1}, std::size_t{63}, std::size_t{4096}, std::size_t{1} << 20}) {
      for (const std::size_t detach_at : {SIZE_MAX, std::size_t{0}, std::size_t{64}, std::size_t{9'000}}) {
        Counter holds;
        OutgoingFrame frame;
        frame.start({header, Hold(&holds, put)});
        std::string seen;
        while (frame.open()) {
          if (seen.size() >= detach_at) frame.detach();
          std::array<iovec, kMaxRangesPerCall + 3> ranges{};
          const std::size_t count = frame.fill(ranges);
          ASSERT_GT(count, 0u);
          const std::size_t take = std::min(step, ranges[0].iov_len);
          seen.append(static_cast<char*>(ranges[0].iov_base), take);
          frame.advance(take);
        }
        ASSERT_EQ(holds.released, 1);
        ASSERT_TRUE(seen == expected) << length << " " << step << " " << detach_at;
      }
    }
  }
}

TEST(TcpFrame, ReceivePoolKeepsAndForgets) {
  ReceivePool pool(8 * kMinKeptBytes);
  const std::byte* first = nullptr;
  {
    const ReceivePool::Block block = pool.take(4 * kMinKeptBytes);
    first = block.data;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kBufferAlignment, 0u);
    EXPECT_EQ(pool.kept_bytes(), 0u);
  }
  EXPECT_EQ(pool.kept_bytes(), 4 * kMinKeptBytes);
  EXPECT_EQ(pool.take(4 * kMinKeptBytes - 100).data, first);  // and back again
  {
    const auto a = pool.take(5 * kMinKeptBytes), b = pool.take(5 * kMinKeptBytes);
    EXPECT_NE(a.data, b.data);
  }
  EXPECT_LE(pool.kept_bytes(), 8 * kMinKeptBytes);
  EXPECT_GT(pool.kept_bytes(), 0u);
  EXPECT_EQ(pool.trim(INT64_MAX - kKeepMs), INT64_MAX);
  EXPECT_EQ(pool.kept_bytes(), 0u);
  ReceivePool::Block outlives;
  {
    ReceivePool short_lived(kMinKeptBytes);
    outlives = short_lived.take(kMinKeptBytes);
  }
  outlives.data[0] = std::byte{1};
}

}  // namespace
}  // namespace millrace::tcp
