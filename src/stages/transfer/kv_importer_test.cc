// Which of several servers that compute prompts is asked, and what becomes of a transfer when one is gone.
#include "stages/transfer/kv_importer.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "stages/transfer/testing/transfer_net.h"

namespace millrace {
namespace {

using testing::prompt;
using namespace transfer;  // NOLINT

constexpr int kServers = 3;

// D alone: what it sends is kept, and the test answers.
class ImporterTest : public ::testing::Test {
 protected:
  class Env final : public TransferEnv {
   public:
    explicit Env(testing::Harness& server) : server_(server) {}
    Status send(const std::string& endpoint, wire::Message& message) override {
      if (unreachable.contains(endpoint)) return error(StatusCode::kUnavailable, "no server is connected");
      sent.emplace_back(endpoint, message);
      return ok_status();
    }
    void connect(const std::string& endpoint) override { connected.push_back(endpoint); }
    PageTransfers& pages() override { return server_.scheduler.transfers(); }
    Result<wire::KvFormat> format() const override { return format_; }
    Status offer(const wire::Peer&, SharedBytes, wire::KvPart&) override { return internal_error("D offers nothing"); }
    void drop_offers(const TransferId&) override {}
    const wire::Peer& reader() const override { return reader_; }
    Result<uint64_t> fetch(const wire::KvPart&, std::size_t) override {
      if (!relay) return internal_error("there is no relay");
      return ++ticket;
    }
    void drop_fetches(const TransferId&) override {}

    std::vector<std::pair<std::string, wire::Message>> sent;
    std::vector<std::string> connected;
    std::set<std::string> unreachable;
    bool relay = false;
    uint64_t ticket = 0;  // of the last fetch
    wire::KvFormat format_{.page_size = testing::kNetPage, .page_bytes = testing::kNetPage * testing::kFakeTokenBytes};

   private:
    testing::Harness& server_;
    const wire::Peer reader_{.stage = "d"};
  };

  void SetUp() override {
    log_init("test", LogLevel::kOff);
    importer.set_peers(peers, 0);
  }
  // The server that is asked for this prompt; "": none.
  std::string ask(uint64_t id, const std::vector<int32_t>& tokens, int64_t now_ms = 0) {
    env.sent.clear();
    const auto waits = importer.begin({ReqId{id}, tokens, "", nullptr}, now_ms);
    return *waits ? wanted_of(env.sent.back()) : "";
  }
  static std::string wanted_of(const std::pair<std::string, wire::Message>& sent) {
    return std::holds_alternative<wire::KvWant>(sent.second) ? sent.first : "";
  }
  TransferId last_id() const { return std::get<wire::KvWant>(env.sent.back().second).id; }
  // The server has nothing to give; the request is ready.
  void finish() {
    importer.on_end({last_id(), wire::Failure{StatusCode::kCancelled, "enough"}}, 0);
    importer.take_ready();
  }

  static std::string bytes_of(int32_t pages) {
    return std::string(static_cast<std::size_t>(pages * testing::kNetPage * testing::kFakeTokenBytes), 'x');
  }
  // All layers of these pages, in the message or by a relay.
  static wire::KvPart part(const TransferId& id, uint32_t number, int32_t first, int32_t pages, bool last, bool relay) {
    wire::KvPart part{.id = id, .number = number, .first_page = first, .pages = pages, .last = last};
    part.layers = testing::kFakeLayers;
    if (relay) {
      part.relay = "sim";
    } else {
      part.bytes.bytes = bytes_of(pages);
    }
    part.checksum = wire::kv_checksum(part);
    return part;
  }
  void on_fetched(const TransferId& id, int32_t pages) {
    importer.on_fetched({id, env.ticket, ok_status(), SharedBytes::of(bytes_of(pages))}, 0);
  }
  // Writes of another one, so that the next one would be refused.
  void fill_queue_of_writes() {
    const TransferPrefix prefix{env.pages().space_of(""), prompt(testing::kNetPage, 700)};
    for (uint64_t ticket = 1'000'000; !env.pages().full(); ++ticket) {
      ASSERT_TRUE(env.pages().write(ticket, prefix, 0, 1, {SharedBytes::of(bytes_of(1))}).ok());
    }
  }
  // Until a request is ready.
  std::vector<KvImporter::Ready> wait_ready() {
    for (int i = 0; i < 100; ++i) {
      d.step();
      for (const PageTransfers::Done& done : env.pages().take_done()) importer.on_written(done, 0);
      importer.step(0);
      auto ready = importer.take_ready();
      if (!ready.empty()) return ready;
    }
    return {};
  }

  testing::Harness d{testing::net_facts(16'384), {.chunked_prefill_tokens = 64}, testing::endless()};
  Env env{d};
  std::vector<TransferPeers::Replica> peers = {{"p0", 1}, {"p1", 1}, {"p2", 1}};
  KvImporter importer{env, {.reply_to = "d", .peers = kServers, .id_seed = 5, .min_tokens = kMinRemoteTokens}};
};

// Else the first prompt of each would find no connection, and be computed here.
TEST_F(ImporterTest, ServersAreConnectedWhenTheyJoin) {
  EXPECT_EQ(env.connected, (std::vector<std::string>{"p0", "p1", "p2"}));
  env.connected.clear();
  importer.set_peers(peers, 0);
  EXPECT_TRUE(env.connected.empty());
  importer.set_peers({{"p0", 1}, {"p1", 2}, {"p2", 1}}, 0);  // started again
  EXPECT_EQ(env.connected, std::vector<std::string>{"p1"});
}

TEST_F(ImporterTest, PromptsThatShareNothingAreSpreadOverTheServers) {
  std::map<std::string, int> asked;
  for (uint64_t id = 1; id <= 9; ++id) ++asked[ask(id, prompt(400, static_cast<int32_t>(40 * id)))];
  EXPECT_EQ(asked, (std::map<std::string, int>{{"p0", 3}, {"p1", 3}, {"p2", 3}}));
}

TEST_F(ImporterTest, APromptGoesWhereItsBeginningWasComputed) {
  const std::string first = ask(1, prompt(400, 7));
  finish();
  for (uint64_t id = 2; id <= 7; ++id) {
    EXPECT_EQ(ask(id, prompt(400 + 16 * static_cast<int32_t>(id), 7)), first) << id;
    finish();
  }
  // It began anew, without its cache: any server will do.
  auto other = peers;
  for (auto& one : other) one.incarnation += one.endpoint == first;
  importer.set_peers(other, 0);
  std::set<std::string> asked;
  for (uint64_t id = 10; id < 13; ++id) asked.insert(ask(id, prompt(400, 7 + 50 * static_cast<int32_t>(id))));
  EXPECT_EQ(asked.size(), 3u);
}

TEST_F(ImporterTest, AServerThatIsGoneIsPassedOver) {
  importer.set_peers({{"", 0}, {"p1", 1}, {"p2", 1}}, 0);
  env.unreachable = {"p1"};
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(ask(id, prompt(400, static_cast<int32_t>(40 * id))), "p2");
  env.unreachable = {"p1", "p2"};
  EXPECT_EQ(ask(5, prompt(400, 300)), "");
  env.unreachable.clear();
  EXPECT_EQ(ask(6, prompt(400, 350)), "") << "they are avoided for a moment";
  EXPECT_NE(ask(7, prompt(400, 400), kRenewMs), "");
}

TEST_F(ImporterTest, AnotherServerIsAskedOnceWithAnotherId) {
  const std::string first = ask(1, prompt(500));
  const TransferId id = last_id();
  auto left = peers;
  for (auto& one : left) {
    if (one.endpoint == first) one.endpoint.clear();
  }
  importer.set_peers(left, 0);
  ASSERT_EQ(env.sent.size(), 2u) << "the one that is gone is not notified";
  const std::string second = wanted_of(env.sent.back());
  EXPECT_NE(second, first);
  EXPECT_NE(last_id(), id);
  EXPECT_TRUE(importer.take_ready().empty());
  importer.on_end({id, wire::Failure{StatusCode::kUnavailable, "late"}}, 0);  // of the first one: nothing
  EXPECT_EQ(importer.open(), 1u);
  importer.on_end({last_id(), wire::Failure{StatusCode::kUnavailable, "it is stopping"}}, 0);
  const auto ready = importer.take_ready();
  ASSERT_EQ(ready.size(), 1u) << "the second failure ends it, although a third server is there";
  EXPECT_EQ(ready[0].request.value, 1u);
  EXPECT_EQ(importer.open(), 0u);
}

TEST_F(ImporterTest, AServerThatBeganAnewHasNothingOfATransfer) {
  const std::string first = ask(1, prompt(500));
  auto other = peers;
  for (auto& one : other) {
    if (one.endpoint == first) one = {first, 2};
  }
  importer.set_peers(other, 0);
  EXPECT_NE(wanted_of(env.sent.back()), first);
}

TEST_F(ImporterTest, AFailureHereAsksNoServer) {
  ask(1, prompt(500));
  importer.stop(error(StatusCode::kUnavailable, "the server is stopping"), 0);
  EXPECT_TRUE(std::holds_alternative<wire::KvEnd>(env.sent.back().second));
  EXPECT_EQ(importer.take_ready().size(), 1u);
  ask(2, prompt(500, 300));
  importer.cancel(ReqId{2}, 0);
  EXPECT_TRUE(std::holds_alternative<wire::KvEnd>(env.sent.back().second));
  EXPECT_EQ(importer.open(), 0u);
}

TEST_F(ImporterTest, AWriteThatFailsHereAsksNoServer) {
  env.relay = true;
  ask(1, prompt(500));
  const TransferId id = last_id();
  importer.on_part(part(id, 0, 0, 8, false, true), 0);
  d.switch_weights({.version = 2});  // the pages are of the old ones
  d.run();
  on_fetched(id, 8);
  EXPECT_TRUE(std::holds_alternative<wire::KvEnd>(env.sent.back().second));
  EXPECT_EQ(importer.take_ready().size(), 1u);
  EXPECT_EQ(importer.open(), 0u);
}

TEST_F(ImporterTest, ARelayThatFailsTwiceAsksAnotherServer) {
  const std::string first = ask(1, prompt(500));
  const TransferId id = last_id();
  importer.on_part(part(id, 0, 0, 8, false, true), 0);
  ASSERT_TRUE(std::holds_alternative<wire::KvTaken>(env.sent.back().second));
  EXPECT_TRUE(std::get<wire::KvTaken>(env.sent.back().second).again);
  importer.on_part(part(id, 0, 0, 8, false, true), 0);
  const std::string second = wanted_of(env.sent.back());
  EXPECT_NE(second, "");
  EXPECT_NE(second, first);
  EXPECT_TRUE(importer.take_ready().empty());
}

// 24 pages in two parts. What comes while no write is accepted waits for the queue, by a message as by a relay.
TEST_F(ImporterTest, PartsWaitForTheQueueOfWrites) {
  for (const bool relay : {false, true}) {
    env.relay = relay;
    const uint64_t request = relay ? 2 : 1;
    ask(request, prompt(400, relay ? 400 : 30));
    const TransferId id = last_id();
    if (relay) importer.on_part(part(id, 0, 0, 12, false, true), 0);
    fill_queue_of_writes();
    if (relay) {
      on_fetched(id, 12);
    } else {
      importer.on_part(part(id, 0, 0, 12, false, false), 0);
    }
    importer.on_part(part(id, 1, 12, 12, true, false), 0);
    const auto ready = wait_ready();
    ASSERT_EQ(ready.size(), 1u) << relay;
    EXPECT_EQ(ready[0].request.value, request);
    EXPECT_EQ(ready[0].transferred_tokens, 384) << relay;
    EXPECT_GT(ready[0].bytes, 0u);
    EXPECT_EQ(ready[0].way, relay ? "mixed" : "messages");
  }
}

// Pages times tokens are more than 32 bits hold.
TEST_F(ImporterTest, TheTokensOfALongPromptAreCounted) {
  ask(1, prompt(190'001));
  importer.on_part(part(last_id(), 0, 0, 11'875, true, false), 0);
  const auto ready = wait_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].transferred_tokens, 190'000);
}

TEST_F(ImporterTest, WithoutASecondServerTheRequestIsReadyAtOnce) {
  importer.set_peers({{"p0", 1}, {"", 0}, {"", 0}}, 0);
  EXPECT_EQ(ask(1, prompt(500)), "p0");
  importer.set_peers({{"", 0}, {"", 0}, {"", 0}}, 0);
  EXPECT_EQ(importer.take_ready().size(), 1u);
}

}  // namespace
}  // namespace millrace
