// Pages of a request at the other server: the proxy's case. And what unknown, used and foreign ids give: nothing.
#include <gtest/gtest.h>

#include "stages/transfer/testing/transfers_fixture.h"

namespace millrace {
namespace {

using testing::prompt;
using testing::TransferNet;
using namespace transfer;  // NOLINT

class Proxied : public testing::TransfersTest {
 protected:
  static std::vector<int32_t> complete(const std::vector<int32_t>& tokens) {
    return {tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(tokens.size() % 16)};
  }
  // What P's worker does with a request that has a transfer id.
  void offer(TransferNet& net, const std::string& id, const std::vector<int32_t>& tokens) {
    ASSERT_TRUE(net.exporter.on_offer({id}, complete(tokens), "", net.now_ms).ok());
    net.p.receive(testing::Harness::request(++next_, tokens, 1));
  }
  void finish(TransferNet& net, const std::string& id) {
    while (net.p.scheduler.busy()) net.turn();
    net.exporter.on_offer_end({id}, ok_status(), net.now_ms);
  }
  uint64_t next_ = 1000;
};

wire::RemoteKv remote(const std::string& id) { return {{id}, wire::KvRole::kDecode, "p"}; }

TEST_F(Proxied, TheWantMayComeBeforeDuringOrAfterTheRequest) {
  for (int when = 0; when < 3; ++when) {
    SCOPED_TRACE(when);
    TransferNet net(false);
    const wire::RemoteKv kv = remote("xfer-a");
    if (when == 0) {
      EXPECT_TRUE(*net.send(1, prompt(500), 8, &kv));
      for (int i = 0; i < 5; ++i) net.turn();
    }
    offer(net, "xfer-a", prompt(500));
    net.turn();
    if (when == 1) {
      EXPECT_TRUE(*net.send(1, prompt(500), 8, &kv));
    }
    finish(net, "xfer-a");
    if (when == 2) {
      EXPECT_TRUE(*net.send(1, prompt(500), 8, &kv));
    }
    net.run();
    EXPECT_EQ(net.transferred.at(1), 496);
    net.expect_clean_end();
  }
}

TEST_F(Proxied, AnUnknownIdAUsedOneAndAnotherPromptsGiveNothing) {
  TransferNet net(false);
  const wire::RemoteKv unknown = remote("xfer-unknown"), a = remote("xfer-a"), b = remote("xfer-b");
  EXPECT_TRUE(*net.send(1, prompt(500), 8, &unknown));
  net.run();
  EXPECT_EQ(net.transferred.at(1), 0);

  offer(net, "xfer-a", prompt(500, 50));
  finish(net, "xfer-a");
  EXPECT_TRUE(*net.send(2, prompt(500, 300), 8, &a)) << "the id of another prompt";
  net.run();
  EXPECT_EQ(net.transferred.at(2), 0);

  offer(net, "xfer-b", prompt(500, 100));
  finish(net, "xfer-b");
  EXPECT_TRUE(*net.send(3, prompt(500, 100), 8, &b));
  net.run();
  EXPECT_EQ(net.transferred.at(3), 496);
  EXPECT_EQ(net.send(4, prompt(500, 100), 8, &b).status().message(),
            "transfer_id xfer-b was used before; wanted a new one for each request");
  EXPECT_EQ(net.exporter.on_offer({"xfer-b"}, prompt(16), "", net.now_ms).code(), StatusCode::kInvalidArgument);
  net.expect_clean_end();
}

TEST_F(Proxied, AnUnusedOfferEndsWithItsLease) {
  TransferNet net(false);
  offer(net, "xfer-a", prompt(400));
  finish(net, "xfer-a");
  EXPECT_EQ(net.p.scheduler.facts().leases, 1);
  for (int64_t ms = 0; ms < kLeaseMs - 500; ms += 100) net.turn(100);
  EXPECT_EQ(net.p.scheduler.facts().leases, 1);
  for (int64_t ms = 0; ms <= 500; ms += 100) net.turn(100);
  EXPECT_EQ(net.p.scheduler.facts().leases, 0);
  EXPECT_EQ(net.exporter.open(), 0u);
  const wire::RemoteKv a = remote("xfer-a");
  EXPECT_TRUE(*net.send(1, prompt(400), 8, &a)) << "an id whose lease has ended";
  net.run();
  EXPECT_EQ(net.transferred.at(1), 0);
  net.expect_clean_end();
}

TEST_F(Proxied, AFailedRequestEndsTheTransferAtOnce) {
  TransferNet net(false);
  const wire::RemoteKv a = remote("xfer-a");
  EXPECT_TRUE(*net.send(1, prompt(500), 8, &a));
  offer(net, "xfer-a", prompt(500));
  net.turn();
  net.p.abort(next_);
  net.exporter.on_offer_end({"xfer-a"}, error(StatusCode::kCancelled, "it was aborted"), net.now_ms);
  const int64_t begun_ms = net.now_ms;
  net.run();
  EXPECT_LT(net.now_ms - begun_ms, kRenewMs);
  net.expect_clean_end();
}

TEST_F(Proxied, TheFirstServerThatWantsAnIdHasIt) {
  TransferNet net(false);
  const wire::RemoteKv a = remote("xfer-a");
  EXPECT_TRUE(*net.send(1, prompt(500), 8, &a));
  net.turn();
  wire::KvWant other{.id = {"xfer-a"}, .reply_to = "other", .format = net.d_format, .tokens = prompt(496)};
  net.exporter.on_want(other, net.now_ms);
  net.exporter.on_taken({{"xfer-a"}, 0, false, "other"}, net.now_ms);
  offer(net, "xfer-a", prompt(500));
  finish(net, "xfer-a");
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  net.expect_clean_end();
}

TEST_F(Proxied, EarlyWantsAreBounded) {
  TransferNet net(false);
  for (std::size_t i = 0; i < kMaxEarlyWants + 10; ++i) {
    net.exporter.on_want(
        {.id = {fmt::format("xfer-{}", i)}, .reply_to = "x", .format = net.d_format, .tokens = prompt(16)}, net.now_ms);
  }
  EXPECT_EQ(net.exporter.open(), kMaxEarlyWants);
  net.expect_clean_end();
}

}  // namespace
}  // namespace millrace
