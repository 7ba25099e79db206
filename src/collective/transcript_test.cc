// The bytes of real PyTorch processes: tests/oracles/collective_transcripts.py recorded what rank 1 sent and received.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "collective/gloo_group.h"
#include "collective/gloo_record.h"
#include "collective/tcp_store_client.h"
#include "collective/testing/pipes.h"

namespace millrace::collective {
namespace {

std::string unhex(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  return out;
}

struct Stream {
  std::string peer;  // "store" or a rank
  bool opened = false;
  std::string in, out;
};

struct Transcript {
  std::string name;
  StoreDialect dialect = StoreDialect::kTorch2;
  int world = 0;
  std::vector<std::pair<uint64_t, uint32_t>> broadcasts;  // bytes, crc32
  std::vector<Stream> streams;

  const Stream& store() const {
    for (const Stream& stream : streams) {
      if (stream.peer == "store") return stream;
    }
    CHECK(false);
    return streams.front();
  }
  std::string key(const std::string& name_in_group) const {
    return (dialect == StoreDialect::kTorch2 ? "/weights/weights//cpu//0/" : "/weights/weights/0/") + name_in_group;
  }
};

Transcript read_transcript(const std::filesystem::path& path) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file);
  Transcript out;
  out.name = path.filename();
  if (json["torch"].get<std::string>().starts_with("1.")) out.dialect = StoreDialect::kTorch1;
  out.world = json["world"];
  for (const auto& pair : json["broadcasts"]) out.broadcasts.emplace_back(pair[0], pair[1]);
  for (const auto& entry : json["streams"]) {
    Stream stream{
        entry["peer"].is_string() ? entry["peer"].get<std::string>() : std::to_string(entry["peer"].get<int>()),
        entry["opened"], "", ""};
    for (const auto& chunk : entry["chunks"]) (chunk[0] == "in" ? stream.in : stream.out) += unhex(chunk[1]);
    out.streams.push_back(stream);
  }
  return out;
}

std::vector<Transcript> transcripts() {
  std::vector<Transcript> out;
  for (const auto& entry : std::filesystem::directory_iterator(MILLRACE_SOURCE_DIR "/tests/golden/collective")) {
    out.push_back(read_transcript(entry.path()));
  }
  CHECK(out.size() >= 2);
  return out;
}

// What follows `before` in `text`: a length of 8 bytes, then so many bytes.
std::string sized_after(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  CHECK(at != std::string::npos);
  const std::size_t begin = at + before.size();
  return text.substr(begin + 8, read_int<uint64_t>(text, begin));
}

std::string sized(const std::string& text) {
  std::string out;
  append_int<uint64_t>(out, text.size());
  return out + text;
}

// The record or the address list that rank 1 set.
std::string local_record(const Transcript& t) {
  const char set = t.dialect == StoreDialect::kTorch2 ? 1 : 0;
  return sized_after(t.store().out, set + sized(t.key("1")));
}

TEST(Transcript, TheStoreGetsTheBytesThatPyTorchSends) {
  for (const Transcript& t : transcripts()) {
    SCOPED_TRACE(t.name);
    const std::string& golden = t.store().out;
    auto [local_end, peer_end] = socket_pair();
    TcpStoreClient client(std::move(local_end), t.dialect);
    const auto known = [&](const char* what) {
      const std::string sent = take(peer_end);
      EXPECT_FALSE(sent.empty());
      EXPECT_NE(golden.find(sent), std::string::npos) << what;
    };
    std::string sum;
    append_int<int64_t>(sum, 2);
    put(peer_end, sum);
    const Result<int64_t> joined = client.add("init/", 1, soon());
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    EXPECT_EQ(*joined, 2);
    known("add");
    ASSERT_TRUE(client.set(t.key("1"), local_record(t), soon()).ok());
    known("set");
    put(peer_end, std::string(1, '\0') + sized("value"));
    const Result<std::string> value = client.get(t.key("0"), soon());
    ASSERT_TRUE(value.ok()) << value.status().to_string();
    EXPECT_EQ(*value, "value");
    // A wait, and a get: PyTorch may wait twice.
    const std::string sent = take(peer_end);
    const std::size_t get_bytes = 1 + 8 + t.key("0").size();
    ASSERT_GT(sent.size(), get_bytes);
    EXPECT_NE(golden.find(sent.substr(0, sent.size() - get_bytes)), std::string::npos);
    EXPECT_NE(golden.find(sent.substr(sent.size() - get_bytes)), std::string::npos);
  }
}

TEST(Transcript, AGreetingIsThatOfPyTorch2) {
  for (const Transcript& t : transcripts()) {
    if (t.dialect != StoreDialect::kTorch2) continue;
    const std::string greeting = store_greeting();
    ASSERT_EQ(greeting.size(), 10u);
    EXPECT_EQ(greeting.substr(0, 6), t.store().out.substr(0, 6)) << t.name;
    EXPECT_EQ(t.store().in.substr(0, 4), t.store().out.substr(6, 4)) << t.name;
    // As a store of PyTorch 1.13 reads it: SET, and a key's length beyond any allocation.
    EXPECT_EQ(greeting[0], 0);
    EXPECT_GE(read_int<uint64_t>(greeting.substr(1, 8)), uint64_t{1} << 63);
  }
}

TEST(Transcript, RecordsAreReadAndWritten) {
  for (const Transcript& t : transcripts()) {
    SCOPED_TRACE(t.name);
    const std::string bytes = local_record(t);
    if (t.dialect == StoreDialect::kTorch2) {
      const Result<RankRecord> record = decode_rank_record(bytes, t.world);
      ASSERT_TRUE(record.ok()) << record.status().to_string();
      EXPECT_EQ(record->listener.host(), "127.0.0.1");
      EXPECT_EQ(record->pair_ids.size(), static_cast<std::size_t>(t.world));
      EXPECT_EQ(encode_rank_record(*record), bytes);
      for (const int other : {t.world - 1, t.world + 1, 1024}) EXPECT_FALSE(decode_rank_record(bytes, other).ok());
      for (std::size_t size = 0; size < bytes.size(); ++size) {
        EXPECT_FALSE(decode_rank_record(bytes.substr(0, size), t.world).ok()) << size;
      }
      continue;
    }
    std::vector<SocketAddress> addresses;
    for (int peer = 0; peer < t.world; ++peer) {
      if (peer == 1) continue;
      const Result<SocketAddress> address = decode_address_list(bytes, t.world, 1, peer);
      ASSERT_TRUE(address.ok()) << address.status().to_string();
      EXPECT_EQ(address->host(), "127.0.0.1");
      addresses.push_back(*address);
    }
    EXPECT_EQ(encode_address_list(addresses), bytes);
    EXPECT_FALSE(decode_address_list(bytes, t.world + 1, 1, 0).ok());
    EXPECT_FALSE(decode_address_list(bytes.substr(1), t.world, 1, 0).ok());
  }
}

// Every connection gets the bytes that PyTorch's rank 1 got, and must carry those that it sent.
TEST(Transcript, BroadcastsAreReceivedAndSentOnAsPyTorchDoes) {
  for (const Transcript& t : transcripts()) {
    SCOPED_TRACE(t.name);
    std::vector<StreamSocket> local_end(static_cast<std::size_t>(t.world));
    std::map<std::string, StreamSocket> peer_end;
    for (const Stream& stream : t.streams) {
      if (stream.peer == "store") continue;
      auto [a, b] = socket_pair();
      // In PyTorch 2 the first 8 bytes of a connection name the pair.
      const bool named = t.dialect == StoreDialect::kTorch2 && !stream.opened;
      put(b, stream.in.substr(named ? 8 : 0));
      local_end[std::stoul(stream.peer)] = std::move(a);
      peer_end[stream.peer] = std::move(b);
    }
    GlooGroup group(1, std::move(local_end), std::make_shared<CancelSignal>());
    for (const auto& [bytes, crc32] : t.broadcasts) {
      Crc32 sum;
      const Status status = group.receive_broadcast(0, bytes, {soon().deadline}, [&](std::span<const std::byte> slice) {
        sum.add(slice);
        return ok_status();
      });
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(sum.value(), crc32);
    }
    for (const Stream& stream : t.streams) {
      if (stream.peer == "store") continue;
      const bool named = t.dialect == StoreDialect::kTorch2 && stream.opened;
      EXPECT_TRUE(take(peer_end[stream.peer]) == stream.out.substr(named ? 8 : 0)) << "to rank " << stream.peer;
    }
  }
}

}  // namespace
}  // namespace millrace::collective
