// How pages and layers are sent, and which parts the other end takes.
#include "stages/transfer/kv_sender.h"

#include <gtest/gtest.h>

#include "stages/transfer/kv_receiver.h"
#include "stages/transfer/limits.h"

namespace millrace::transfer {
namespace {

constexpr int64_t kLayerBytes = kPartBytes / 4;  // of a page: four pages of one layer are a part

std::string text_of(const wire::KvPart& part) {
  return fmt::format("{}: pages {}+{} layers {}+{}{}", part.number, part.first_page, part.pages, part.first_layer,
                     part.layers, part.last ? " last" : "");
}

// What is sent now, and taken.
std::vector<std::string> send_all(KvSender& sender, const KvSender::Stored& stored) {
  std::vector<std::string> out;
  while (const auto part = sender.next(stored)) {
    sender.sent(*part);
    out.push_back(text_of(*part));
    EXPECT_TRUE(sender.on_taken({{"x"}, part->number + 1, false, "d"}).ok());
  }
  return out;
}

using Texts = std::vector<std::string>;

TEST(KvSender, PagesThatAreComputedGoByLayersAndTheLastLayerWhenTheyAreCached) {
  KvSender sender({"x"}, {.from = 1, .end = 11, .layers = 4, .layer_bytes = kLayerBytes});
  EXPECT_EQ(send_all(sender, {.cached = 3, .stored = 3, .layers = 0}),
            (Texts{"0: pages 1+1 layers 0+4", "1: pages 2+1 layers 0+4"}));
  EXPECT_FALSE(sender.half_sent());
  EXPECT_EQ(send_all(sender, {.cached = 3, .stored = 9, .layers = 1}),
            (Texts{"2: pages 3+4 layers 0+1", "3: pages 7+2 layers 0+1"}));
  EXPECT_TRUE(sender.half_sent());
  EXPECT_EQ(send_all(sender, {.cached = 3, .stored = 9, .layers = 1}), Texts{});
  EXPECT_EQ(send_all(sender, {.cached = 3, .stored = 9, .layers = 4}),
            (Texts{"4: pages 3+2 layers 1+2", "5: pages 5+2 layers 1+2", "6: pages 7+2 layers 1+2"}))
      << "not the last layer: the step may fail";
  EXPECT_EQ(send_all(sender, {.cached = 9, .stored = 11, .layers = 2}),
            (Texts{"7: pages 3+4 layers 3+1", "8: pages 7+2 layers 3+1", "9: pages 9+2 layers 0+2"}))
      << "then the next chunk";
  EXPECT_FALSE(sender.all_sent());
  EXPECT_EQ(send_all(sender, {.cached = 11}), (Texts{"10: pages 9+2 layers 2+2 last"}));
  EXPECT_TRUE(sender.all_sent());
  EXPECT_FALSE(sender.half_sent());
}

TEST(KvSender, AFewBytesOfLayersWaitForMore) {
  KvSender sender({"x"}, {.from = 0, .end = 2, .layers = 4, .layer_bytes = 100, .least_bytes = 400});
  EXPECT_EQ(send_all(sender, {.stored = 2, .layers = 1}), Texts{});
  EXPECT_EQ(send_all(sender, {.stored = 2, .layers = 2}), Texts{"0: pages 0+2 layers 0+2"});
  EXPECT_EQ(send_all(sender, {.stored = 2, .layers = 3}), Texts{});
  EXPECT_EQ(send_all(sender, {.cached = 2}), Texts{"1: pages 0+2 layers 2+2 last"});
}

TEST(KvSender, WithOneLayerOnlyCachedPagesGo) {
  KvSender sender({"x"}, {.from = 0, .end = 2, .layers = 1, .layer_bytes = 100});
  EXPECT_EQ(send_all(sender, {.stored = 2, .layers = 1}), Texts{});
  EXPECT_EQ(send_all(sender, {.cached = 2}), Texts{"0: pages 0+2 layers 0+1 last"});
}

TEST(KvSender, WhatIsSentAgainAreTheSameParts) {
  KvSender sender({"x"}, {.from = 0, .end = 4, .layers = 4, .layer_bytes = kLayerBytes});
  const KvSender::Stored some{.stored = 4, .layers = 2}, all{.cached = 4};
  for (const auto& stored : {some, some, all}) sender.sent(*sender.next(stored));
  ASSERT_TRUE(sender.on_taken({{"x"}, 1, true, "d"}).ok());
  EXPECT_EQ(sender.resent(), 2u);
  EXPECT_EQ(send_all(sender, all),
            (Texts{"1: pages 2+2 layers 0+2", "2: pages 0+2 layers 2+2", "3: pages 2+2 layers 2+2 last"}));
}

class KvReceiverTest : public ::testing::Test {
 protected:
  Result<KvReceiver::Part> take(int32_t first, int32_t pages, int32_t first_layer, int32_t layers, bool last = false) {
    wire::KvPart part{.id = {"x"},
                      .number = number,
                      .first_page = first,
                      .pages = pages,
                      .last = last,
                      .relay = "sim",
                      .first_layer = first_layer,
                      .layers = layers};
    part.checksum = wire::kv_checksum(part);
    auto verdict = receiver.on_part(part, 0);
    if (verdict.ok() && *verdict == KvReceiver::Part::kWrite) ++number;
    return verdict;
  }
  uint32_t number = 0;
  KvReceiver receiver{{"x"}, 2, 8, 4, 400, 0};
};

TEST_F(KvReceiverTest, LayersComeInSequenceAndPagesWithoutGaps) {
  ASSERT_TRUE(take(2, 3, 0, 1).ok());
  const std::vector<std::array<int32_t, 4>> wrong = {
      {2, 3, 0, 1},  // again
      {2, 3, 2, 1},  // a layer is left out
      {2, 3, 1, 4},  // more layers than there are
      {6, 1, 0, 1},  // a page is left out
      {4, 2, 1, 1},  // a page that has not begun
      {1, 1, 0, 4},  // D has it
      {5, 4, 0, 4},  // more pages than are wanted
  };
  for (const auto& [first, pages, layer, layers] : wrong) {
    const auto verdict = take(first, pages, layer, layers);
    EXPECT_EQ(verdict.status().code(), StatusCode::kInvalidArgument) << first << " " << layer;
  }
  EXPECT_EQ(take(2, 3, 2, 1).status().message(),
            "part 1 has the layers [2, 3) of the pages [2, 5); wanted what follows page 2 of 8 with 4 layers");
  ASSERT_TRUE(take(2, 2, 1, 3).ok());
  ASSERT_TRUE(take(4, 1, 1, 3).ok());
  EXPECT_FALSE(take(5, 3, 0, 4).ok()) << "it is the last one, without the flag";
  ASSERT_TRUE(take(5, 3, 0, 4, true).ok());
  EXPECT_FALSE(receiver.complete());
  receiver.on_written(4);
  EXPECT_TRUE(receiver.complete());
}

TEST_F(KvReceiverTest, AfterALossThePagesHaveTheLayersOfBefore) {
  ASSERT_TRUE(take(2, 6, 0, 2).ok());
  ASSERT_TRUE(take(2, 4, 2, 2).ok());
  ASSERT_TRUE(take(6, 2, 2, 2, true).ok());
  const std::vector<KvReceiver::Run> newest = {{1, 2, 4, {2, 4}}, {2, 6, 2, {2, 4}}};
  ASSERT_TRUE(receiver.on_lost(newest, error(StatusCode::kUnavailable, "gone")).ok());
  number = 1;
  EXPECT_FALSE(take(2, 4, 0, 2).ok());
  ASSERT_TRUE(take(2, 4, 2, 2).ok());
  ASSERT_TRUE(take(6, 2, 2, 2, true).ok());
  EXPECT_FALSE(receiver.on_lost(newest, error(StatusCode::kUnavailable, "gone")).ok()) << "the second time";
}

}  // namespace
}  // namespace millrace::transfer
