// Page tables as changes: what a receiver expands is what the sender had, whatever came before.
#include "runner/page_tables.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace {
namespace {

std::vector<int32_t> expanded(PageTables& receiver, const wire::LayerSequence& sequence) {
  const auto table = receiver.expand(sequence);
  EXPECT_TRUE(table.ok()) << table.status().to_string();
  return table.ok() ? std::vector<int32_t>(table->begin(), table->end()) : std::vector<int32_t>();
}

TEST(PageTables, AnyTablesComeBackAsTheyWere) {
  std::mt19937 random(3);
  PageTables sender, first, second;
  std::vector<std::vector<int32_t>> tables(40);
  std::size_t sent = 0, complete = 0;
  for (int message = 0; message < 20'000; ++message) {
    for (PageTables* one : {&sender, &first, &second}) one->begin_message();
    // A few requests are named often, the others seldom: some of those are forgotten between.
    const std::size_t request = random() % (random() % 50 == 0 ? tables.size() : 4);
    std::vector<int32_t>& table = tables[request];
    if (random() % 40 == 0) table.resize(random() % (table.size() + 1));  // retracted
    for (unsigned more = random() % 3; more > 0; --more) table.push_back(static_cast<int32_t>(random() % 1000));
    wire::LayerSequence sequence{.request_id = ReqId{request}, .pages = table};
    sender.reduce(sequence);
    sent += sequence.pages.size();
    complete += table.size();
    ASSERT_EQ(expanded(first, sequence), table);
    ASSERT_EQ(expanded(second, sequence), table);
  }
  EXPECT_LT(sent * 10, complete);
}

TEST(PageTables, ATableThatWasNotNamedForLongIsForgottenByAll) {
  PageTables sender, receiver;
  const auto send = [&](uint64_t request, std::vector<int32_t> pages) {
    sender.begin_message();
    receiver.begin_message();
    wire::LayerSequence sequence{.request_id = ReqId{request}, .pages = std::move(pages)};
    sender.reduce(sequence);
    (void)expanded(receiver, sequence);
    return sequence;
  };
  send(1, {5, 6, 7});
  EXPECT_EQ(send(1, {5, 6, 7, 8}).pages_kept, 3);
  for (uint64_t i = 0; i < 2 * kKeptMessages; ++i) send(2, {9});
  EXPECT_EQ(send(1, {5, 6, 7, 8}).pages_kept, 0);
  EXPECT_EQ(send(2, {9}).pages_kept, 1);
  sender.clear();
  EXPECT_EQ(send(2, {9}).pages_kept, 0);
}

TEST(PageTables, MoreKeptThanTheTableHasIsRefused) {
  PageTables tables;
  tables.begin_message();
  ASSERT_TRUE(tables.expand({.request_id = ReqId{1}, .pages = {4}}).ok());
  const auto table = tables.expand({.request_id = ReqId{1}, .pages = {}, .pages_kept = 2});
  ASSERT_FALSE(table.ok());
  EXPECT_EQ(table.status().message(), "2 pages are kept of the table of request 1, which has 1");
}

}  // namespace
}  // namespace millrace
