// Transfers of KV pages between two servers, in one thread, with a network and a clock from the test.
#include <gtest/gtest.h>

#include <cstdlib>

#include "stages/transfer/testing/transfers_fixture.h"

namespace millrace {
namespace {

using testing::prompt;
using testing::TransferNet;
using namespace transfer;  // NOLINT

using Transfers = testing::TransfersTest;

TEST_F(Transfers, ALongPromptIsComputedAtTheOtherServer) {
  TransferNet net;
  EXPECT_TRUE(*net.send(1, prompt(500)));
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  EXPECT_EQ(net.d.outcomes.at(1).usage.cached_tokens, 496);
  EXPECT_EQ(net.d.scheduler.facts().prefill_rows, 4u) << "of 500 the last page's";
  EXPECT_EQ(decode_ended(net, "ok"), 1);
  EXPECT_GT(metric(net, "kv_transfer_parts_total{end=decode}"), 4) << "parts go while later chunks are computed";
  net.expect_clean_end();
  EXPECT_EQ(metric(net, "kv_transfers_total{end=prefill,reason=ok}"), 1);
}

TEST_F(Transfers, AShortPromptAndACachedOneAreNotAsked) {
  TransferNet net;
  EXPECT_FALSE(*net.send(1, prompt(128))) << "7 complete pages, and one token to compute";
  EXPECT_TRUE(*net.send(2, prompt(300, 200)));
  net.run();
  EXPECT_FALSE(*net.send(3, prompt(310, 200)));
  net.run();
  EXPECT_EQ(net.jobs_begun, 1u);
  net.expect_clean_end();
}

TEST_F(Transfers, OnlyWhatTheCacheLacksIsSent) {
  TransferNet net;
  EXPECT_TRUE(*net.send(1, prompt(200)));
  net.run();
  EXPECT_TRUE(*net.send(2, prompt(560)));
  net.run();
  EXPECT_EQ(net.transferred.at(2), 544 - 192);
  EXPECT_EQ(net.d.outcomes.at(2).usage.cached_tokens, 544);
  net.expect_clean_end();
}

TEST_F(Transfers, CopiesOfAPromptShareOneTransfer) {
  TransferNet net;
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_TRUE(*net.send(id, prompt(400)));
  net.run();
  EXPECT_EQ(net.jobs_begun, 1u);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(net.d.outcomes.at(id).usage.cached_tokens, 384);
  net.expect_clean_end();
}

TEST_F(Transfers, OtherExtraKeysShareNothing) {
  TransferNet net;
  EXPECT_TRUE(*net.send(1, prompt(400), 8, nullptr, "a"));
  EXPECT_TRUE(*net.send(2, prompt(400), 8, nullptr, "b"));
  net.run();
  EXPECT_EQ(net.jobs_begun, 2u);
  EXPECT_EQ(net.d.scheduler.facts().imported_tokens, 2u * 384);
  EXPECT_EQ(net.d.outcomes.at(2).usage.cached_tokens, 384);
  net.expect_clean_end();
}

TEST_F(Transfers, WithoutAServerEachRequestComputesAtOnce) {
  TransferNet net;
  net.p_gone = true;
  EXPECT_FALSE(*net.send(1, prompt(400)));
  net.run();
  EXPECT_EQ(metric(net, "kv_transfers_not_asked_total{reason=no_peer}"), 1);
  net.expect_clean_end();
}

TEST_F(Transfers, AServerThatDiesCostsTimeAlone) {
  TransferNet net;
  EXPECT_TRUE(*net.send(1, prompt(500)));
  for (int i = 0; i < 4; ++i) net.turn();
  net.p_gone = net.p_frozen = true;
  const int64_t died_ms = net.now_ms;
  net.run();
  EXPECT_LT(net.now_ms - died_ms, 2 * kRenewMs) << "the next report finds no server";
  EXPECT_EQ(decode_ended(net, "unavailable"), 1);
  EXPECT_GT(net.d.outcomes.at(1).usage.cached_tokens, 0) << "what had arrived is used";
  net.p_gone = false;
  net.expect_clean_end();
}

TEST_F(Transfers, AFrozenServerCostsTheTimeLimitOnceAndIsThenAvoided) {
  TransferNet net;
  net.p_frozen = true;
  EXPECT_TRUE(*net.send(1, prompt(500)));
  const int64_t begun_ms = net.now_ms;
  while (!net.held.empty()) net.turn(50);
  EXPECT_GE(net.now_ms - begun_ms, kProgressTimeoutMs);
  EXPECT_LE(net.now_ms - begun_ms, kProgressTimeoutMs + 100);
  EXPECT_FALSE(*net.send(2, prompt(500, 300)));
  net.run();
  net.turn(kAvoidMs);
  net.p_frozen = false;
  EXPECT_TRUE(*net.send(3, prompt(500, 400))) << "it is tried again";
  net.run();
  EXPECT_EQ(net.transferred.at(3), 496);
  net.expect_clean_end();
}

TEST_F(Transfers, AServerThatDrainsEndsWhatItHasBegunAndIsNotAskedAgain) {
  TransferNet net;
  EXPECT_TRUE(*net.send(1, prompt(500)));
  for (int i = 0; i < 4; ++i) net.turn();
  net.exporter.drain();
  EXPECT_EQ(net.exporter.open(), 1u);
  EXPECT_TRUE(*net.send(2, prompt(500, 300))) << "D does not know yet";
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  EXPECT_EQ(net.transferred.at(2), 0);
  EXPECT_EQ(net.jobs_begun, 1u);
  EXPECT_EQ(decode_ended(net, "unavailable"), 1);
  EXPECT_FALSE(*net.send(3, prompt(500, 400))) << "it does now";
  net.run();
  net.turn();
  EXPECT_EQ(net.exporter.open(), 0u) << "without waiting for a lease";
  EXPECT_EQ(net.p.scheduler.facts().leases, 0);
  net.expect_clean_end();
}

TEST_F(Transfers, AbortsEndBothEndsAtEveryMoment) {
  for (int moment = 0; moment < 60; ++moment) {
    SCOPED_TRACE(moment);
    TransferNet net;
    net.p.runner.polls_per_step = moment % 5;
    EXPECT_TRUE(*net.send(1, prompt(500)));
    for (int i = 0; i < moment; ++i) net.turn();
    net.abort(1);
    EXPECT_EQ(net.importer.open(), 0u);
    for (int i = 0; i < 3; ++i) net.turn();
    EXPECT_EQ(net.exporter.open(), 0u) << "without waiting for the lease";
    net.expect_clean_end();
  }
}

TEST_F(Transfers, AnAbortOfOneCopyLeavesTheOthers) {
  TransferNet net;
  EXPECT_TRUE(*net.send(1, prompt(500)));
  EXPECT_TRUE(*net.send(2, prompt(500)));
  net.turn();
  net.abort(1);
  net.run();
  EXPECT_EQ(net.transferred.at(2), 496);
  net.expect_clean_end();
}

TEST_F(Transfers, ADifferentFormatIsRefusedWithBothValues) {
  TransferNet net;
  std::string why;
  net.on_deliver = [&](const wire::Message& message) {
    if (const auto* end = std::get_if<wire::KvEnd>(&message); end != nullptr && end->failure)
      why = end->failure->message;
  };
  const std::pair<std::function<void(wire::KvFormat&)>, std::string> cases[] = {
      {[](wire::KvFormat& f) { f.model_hash = 8; }, "the model is 7 there and 8 here; wanted the same"},
      {[](wire::KvFormat& f) { f.weights_checksum = 3; },
       "the weights' checksum is 0 there and 3 here; wanted the same"},
      {[](wire::KvFormat& f) { f.isa = "amx"; }, "the instruction set is ref there and amx here; wanted the same"},
      {[](wire::KvFormat& f) { f.kv_dtype = "int8"; }, "the KV dtype is f32 there and int8 here; wanted the same"},
      {[](wire::KvFormat& f) { f.page_size = 32; }, "the page size is 16 there and 32 here; wanted the same"},
      {[](wire::KvFormat& f) { f.page_bytes = 1; }, "the size of a page is 256 there and 1 here; wanted the same"}};
  uint64_t id = 0;
  for (const auto& [change, message] : cases) {
    net.p_format = net.d_format;
    change(net.p_format);
    ++id;
    EXPECT_TRUE(*net.send(id, prompt(400, static_cast<int32_t>(id) * 50)));
    net.run();
    EXPECT_EQ(why, message);
  }
  EXPECT_EQ(net.p.scheduler.facts().accepted, 0u) << "nothing was computed";
  EXPECT_EQ(net.d.scheduler.facts().imported_tokens, 0u);
  net.expect_clean_end();
}

TEST_F(Transfers, ADamagedPartIsSentOnceMoreAndTheSecondDamageEndsTheTransfer) {
  TransferNet net;
  net.relay = false;
  int damages = 1;
  net.fate = [&](const std::string&, wire::Message& message) {
    if (auto* part = std::get_if<wire::KvPart>(&message); part != nullptr && part->number == 1 && damages > 0) {
      --damages;
      part->bytes.bytes[3] ^= 4;
    }
    return TransferNet::Fate{};
  };
  EXPECT_TRUE(*net.send(1, prompt(500)));
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  EXPECT_EQ(metric(net, "kv_transfer_parts_again_total{end=decode}"), 1);
  damages = 2;
  EXPECT_TRUE(*net.send(2, prompt(500, 300)));
  net.run();
  EXPECT_LT(net.transferred.at(2), 496);
  EXPECT_EQ(decode_ended(net, "internal"), 1);
  net.expect_clean_end();
}

// The relay's own trouble: what it does not bring comes in messages, and so does all that follows.
TEST_F(Transfers, WhatARelayDoesNotBringComesInMessages) {
  TransferNet net;
  const int64_t parts = [&] {
    EXPECT_TRUE(*net.send(1, prompt(500)));
    net.run();
    return metric(net, "kv_transfer_parts_total{end=decode}");
  }();
  EXPECT_GT(parts, 2);
  EXPECT_EQ(metric(net, "kv_transfer_parts_in_messages_total{end=prefill}"), 0);
  net.fetch_fate = [](const wire::KvPart& part) -> Result<int64_t> {
    if (part.number == 0) return 5;
    return error(StatusCode::kUnavailable, "the writer cannot be reached");
  };
  log_init("test", LogLevel::kWarning);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(*net.send(2, prompt(500, 300)));
  net.run();
  EXPECT_EQ(net.transferred.at(2), 496);
  EXPECT_EQ(metric(net, "kv_transfer_parts_again_total{end=decode}"), 1);
  EXPECT_GT(metric(net, "kv_transfer_parts_in_messages_total{end=decode}"), 0);
  EXPECT_TRUE(*net.send(3, prompt(500, 600)));
  net.run();
  EXPECT_EQ(net.transferred.at(3), 496);
  const std::string logged = ::testing::internal::GetCapturedStderr();
  const auto first = logged.find("d-0 asked for");
  EXPECT_NE(first, std::string::npos) << logged;
  EXPECT_EQ(logged.find("d-0 asked for", first + 1), std::string::npos) << "once for each server: " << logged;
  net.expect_clean_end();
}

TEST_F(Transfers, ARelayWithoutCapacityDelaysParts) {
  TransferNet net;
  net.most_offers = 1;
  net.fetch_fate = [](const wire::KvPart&) -> Result<int64_t> { return 30; };
  EXPECT_TRUE(*net.send(1, prompt(500)));
  EXPECT_TRUE(*net.send(2, prompt(500, 300)));
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  EXPECT_EQ(net.transferred.at(2), 496);
  EXPECT_EQ(metric(net, "kv_transfer_parts_in_messages_total{end=prefill}"), 0);
  net.expect_clean_end();
}

// The bytes of an earlier part come after those of later ones.
TEST_F(Transfers, BytesThatComeLateAreWrittenBeforeThoseOfTheNextPart) {
  TransferNet net;
  net.fetch_fate = [](const wire::KvPart& part) -> Result<int64_t> { return part.number % 2 == 0 ? 40 : 1; };
  EXPECT_TRUE(*net.send(1, prompt(500)));
  net.run();
  EXPECT_EQ(net.transferred.at(1), 496);
  net.expect_clean_end();
}

TEST_F(Transfers, EveryLostMessageCostsTimeAlone) {
  for (int lost = 0; lost < 50; ++lost) {
    SCOPED_TRACE(lost);
    TransferNet net;
    net.relay = lost % 2 == 0;
    net.p.runner.polls_per_step = lost % 3 * 2;
    int number = 0;
    net.fate = [&](const std::string&, wire::Message&) {
      return TransferNet::Fate{.copies = number++ == lost / 2 ? 0 : 1};
    };
    EXPECT_TRUE(*net.send(1, prompt(500)));
    net.run();
    net.expect_clean_end();
  }
}

TEST_F(Transfers, AWantThatWasLostIsKnownWithTheNextReport) {
  TransferNet net;
  net.fate = [&](const std::string&, wire::Message& message) {
    return TransferNet::Fate{.copies = std::holds_alternative<wire::KvWant>(message) ? 0 : 1};
  };
  EXPECT_TRUE(*net.send(1, prompt(500)));
  const int64_t begun_ms = net.now_ms;
  net.run();
  EXPECT_LT(net.now_ms - begun_ms, 2 * kRenewMs + 100);
  EXPECT_EQ(decode_ended(net, "not_found"), 1);
  net.expect_clean_end();
}

// By hand more than the timed suite has: MILLRACE_TRANSFER_SEEDS=FIRST:COUNT.
struct Seeds {
  uint64_t first = 1, count = 250;
};
Seeds seeds() {
  Seeds out;
  const char* given = std::getenv("MILLRACE_TRANSFER_SEEDS");
  const std::string text = given == nullptr ? "" : given;
  if (const std::size_t colon = text.find(':'); colon != std::string::npos) {
    out = {std::stoull(text.substr(0, colon)), std::stoull(text.substr(colon + 1))};
  }
  return out;
}

// Random requests, prompts with common beginnings, short memory, and a network that loses, repeats, delays and damages,
// in one direction or both; servers that freeze, go and are killed. Every request ends, every text is the
// oracle's, and nothing is left.
TEST_F(Transfers, OverAnyNetworkEveryRequestEndsWithItsText) {
  uint64_t transferred = 0, failed = 0, of_layers = 0;
  const Seeds all = seeds();
  for (uint64_t seed = all.first; seed < all.first + all.count; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t count) { return random() % count; };
    TransferNet net(true, 40 + static_cast<int32_t>(pick(100)), 40 + static_cast<int32_t>(pick(100)));
    const uint64_t loss = pick(4) * 3;
    std::string cut_off;  // gets nothing
    net.fate = [&](const std::string& to, wire::Message& message) {
      TransferNet::Fate fate;
      if (to == cut_off) return TransferNet::Fate{.copies = 0};
      if (loss > 0 && pick(100) < loss) fate.copies = static_cast<int>(pick(3));
      if (pick(10) == 0) fate.late_ms = static_cast<int64_t>(pick(300));
      if (auto* part = std::get_if<wire::KvPart>(&message); part != nullptr && loss > 0 && pick(40) == 0) {
        std::string& text = part->relay.empty() ? part->bytes.bytes : part->descriptor.bytes;
        text[pick(text.size())] ^= 1;
      }
      return fate;
    };
    net.relay = pick(3) > 0;
    if (pick(2) == 0) net.most_offers = 1 + pick(6);
    net.p.runner.polls_per_step = static_cast<int>(pick(3) * pick(6));
    net.d.runner.polls_per_step = static_cast<int>(pick(3));
    if (pick(4) == 0) {
      net.p.runner.fail_step = [&](const Batch&) { return pick(20) == 0 ? internal_error("a fault") : ok_status(); };
    }
    const uint64_t unread = pick(3) * 5;
    net.fetch_fate = [&](const wire::KvPart&) -> Result<int64_t> {
      if (pick(100) < unread) return error(StatusCode::kUnavailable, "a fault");
      return static_cast<int64_t>(pick(5) * pick(20));
    };
    uint64_t id = 0;
    for (int i = 0; i < 120; ++i) {
      if (pick(6) == 0) {
        const auto length = 20 + static_cast<int32_t>(pick(500));
        ASSERT_TRUE(
            net.send(++id, prompt(length, 1 + 200 * static_cast<int32_t>(pick(4))), 1 + static_cast<int32_t>(pick(20)))
                .ok());
      }
      if (pick(20) == 0 && id > 0) net.abort(1 + pick(id));
      if (pick(25) == 0) net.p_frozen = !net.p_frozen;
      if (pick(60) == 0) net.p_gone = !net.p_gone;
      if (pick(40) == 0) cut_off = cut_off.empty() ? (pick(2) == 0 ? "p" : "d") : "";
      if (pick(80) == 0) net.restart_p();
      if (pick(30) == 0) net.publish_peers();
      net.turn(1 + static_cast<int64_t>(pick(100)));
    }
    cut_off.clear();
    net.run();
    for (const auto& [request, tokens] : net.transferred) ++(tokens > 0 ? transferred : failed);
    of_layers += net.parts_of_layers;
    net.p.runner.fail_step = nullptr;
    net.p_gone = false;
    net.expect_clean_end();
    if (HasFailure()) return;
  }
  EXPECT_GT(transferred, all.count);
  EXPECT_GT(failed, all.count / 2);
  EXPECT_GT(of_layers, 2 * all.count);
}

}  // namespace
}  // namespace millrace
