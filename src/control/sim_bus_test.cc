// SimBus against simple models: a perfect link is a queue with a delay, an imperfect one loses and repeats as often as
// configured and keeps its books, and the same seed gives the same run.
#include "control/testing/sim_bus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "wire/limits.h"

namespace millrace {
namespace {

wire::Message numbered(uint64_t id) { return wire::AbortRequest{ReqId{id}}; }
Status send(Outbox& out, uint64_t id) {
  wire::Message message = numbered(id);
  return out.send(message);
}
std::vector<uint64_t> read_all(Inbox& in) {
  std::vector<uint64_t> out;
  while (auto message = in.receive(0)) out.push_back(std::get<wire::AbortRequest>(*message).id.value);
  return out;
}
void expect_balanced(const SimCounters& c) {
  EXPECT_EQ(c.sent + c.duplicated, c.received + c.dropped + c.lost_partition + c.lost_dead + c.in_flight + c.queued);
}
using Ids = std::vector<uint64_t>;

// The model: three nodes, each pair's queue of (arrival, id), with a fixed delay of its own.
TEST(SimBus, PerfectLinksAreQueuesWithADelay) {
  SimBus bus({.seed = 1});
  std::map<std::string, std::unique_ptr<Inbox>> inboxes;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Outbox>> outboxes;
  std::map<std::pair<std::string, std::string>, std::deque<std::pair<int64_t, uint64_t>>> model;
  std::map<std::pair<std::string, std::string>, int64_t> delays;
  const std::vector<std::string> names = {"a", "b", "c"};
  for (const auto& name : names) inboxes[name] = bus.inbox(name).value();
  for (const auto& from : names) {
    for (const auto& to : names) {
      const int64_t delay = static_cast<int64_t>(7 * from[0] + 3 * to[0]) % 11;
      delays[{from, to}] = delay;
      bus.set_link(from, to, {.min_delay_ms = delay, .max_delay_ms = delay});
      outboxes[{from, to}] = bus.outbox(from, to);
    }
  }
  std::mt19937 random(5);
  uint64_t id = 0;
  for (int step = 0; step < 3000; ++step) {
    const auto& from = names[random() % 3];
    const auto& to = names[random() % 3];
    ASSERT_TRUE(send(*outboxes[{from, to}], ++id).ok());
    model[{from, to}].push_back({bus.now_ms() + delays[{from, to}], id});
    if (random() % 3 != 0) continue;
    bus.advance(static_cast<int64_t>(random() % 4));
    for (const auto& name : names) {
      std::vector<std::pair<int64_t, uint64_t>> due;  // by arrival, then by sending: ids count sends
      for (auto& [link, queue] : model) {
        while (link.second == name && !queue.empty() && queue.front().first <= bus.now_ms()) {
          due.push_back(queue.front());
          queue.pop_front();
        }
      }
      std::sort(due.begin(), due.end());
      Ids expected;
      for (const auto& [arrival, number] : due) expected.push_back(number);
      ASSERT_EQ(read_all(*inboxes[name]), expected) << "at " << bus.now_ms();
    }
    expect_balanced(bus.counters());
  }
  EXPECT_EQ(bus.counters().sent, 3000u);
}

TEST(SimBus, LossAndRepetitionAreAsOftenAsConfigured) {
  SimBus bus({.seed = 2});
  bus.set_default_link({.min_delay_ms = 1, .max_delay_ms = 9, .drop = 0.1, .duplicate = 0.05});
  auto in = bus.inbox("b").value();
  auto out = bus.outbox("a", "b");
  Ids got;
  for (uint64_t id = 1; id <= 20'000; ++id) {
    ASSERT_TRUE(send(*out, id).ok());
    bus.advance(1);
    for (const uint64_t number : read_all(*in)) got.push_back(number);
  }
  bus.advance(20);
  for (const uint64_t number : read_all(*in)) got.push_back(number);
  const SimCounters c = bus.counters();
  expect_balanced(c);
  EXPECT_EQ(c.in_flight + c.queued, 0u);
  EXPECT_EQ(c.received, got.size());
  // Five standard deviations of the binomial distributions.
  EXPECT_NEAR(static_cast<double>(c.dropped), 2000, 5 * 42.5);
  EXPECT_NEAR(static_cast<double>(c.duplicated), 18'000 * 0.05, 5 * 30.8);
  EXPECT_TRUE(std::is_sorted(got.begin(), got.end())) << "a link without reorder keeps its order";
  EXPECT_EQ(std::set<uint64_t>(got.begin(), got.end()).size(), 20'000 - c.dropped);
}

TEST(SimBus, ReorderedMessagesAreOvertakenAndAllCome) {
  SimBus bus({.seed = 3});
  bus.set_default_link({.reorder = 0.2, .reorder_ms = 30});
  auto in = bus.inbox("b").value();
  auto out = bus.outbox("a", "b");
  Ids got;
  for (uint64_t id = 1; id <= 2000; ++id) {
    ASSERT_TRUE(send(*out, id).ok());
    bus.advance(1);
    for (const uint64_t number : read_all(*in)) got.push_back(number);
  }
  bus.advance(30);
  for (const uint64_t number : read_all(*in)) got.push_back(number);
  EXPECT_FALSE(std::is_sorted(got.begin(), got.end()));
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(static_cast<int64_t>(got[i]) - static_cast<int64_t>(i + 1)), 31);
  std::sort(got.begin(), got.end());
  for (uint64_t id = 1; id <= 2000; ++id) ASSERT_EQ(got[id - 1], id);
  EXPECT_NEAR(static_cast<double>(bus.counters().reordered), 400, 5 * 17.9);
}

// A run with everything in it; what each node received, and when, as text. `order` permutes how nodes, links and
// outboxes are set up, which must not matter.
std::string story(uint64_t seed, bool backwards) {
  SimBus bus({.seed = seed, .capacity = 50, .notice_ms = 5});
  std::vector<std::string> names = {"entry", "left", "right", "terminal"};
  if (backwards) std::reverse(names.begin(), names.end());
  std::map<std::string, std::unique_ptr<Inbox>> inboxes;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Outbox>> outboxes;
  for (const auto& name : names) inboxes[name] = bus.inbox(name).value();
  for (const auto& from : names) {
    for (const auto& to : names) {
      bus.set_link(from, to, {.min_delay_ms = 0, .max_delay_ms = 12, .drop = 0.05, .duplicate = 0.1, .reorder = 0.1});
      outboxes[{from, to}] = bus.outbox(from, to);
    }
  }
  std::string out;
  std::mt19937 random(99);  // the same drive for every seed of the bus
  std::sort(names.begin(), names.end());
  for (uint64_t step = 1; step <= 2000; ++step) {
    const std::string from = names[random() % 4], to = names[random() % 4], third = names[random() % 4];
    const uint32_t event = random() % 100;
    if (event == 0) bus.partition(from, to);
    if (event == 1) bus.heal_both(from, to);
    if (event == 2) bus.pause(third);
    if (event == 3) bus.resume(third);
    if (event == 4) bus.kill(third);
    if (event == 5 && !bus.alive(third)) {
      inboxes[third] = bus.inbox(third).value();
      for (const auto& other : names) outboxes[{third, other}] = bus.outbox(third, other);
    }
    if (!send(*outboxes[{from, to}], step).ok()) out += "x";
    bus.advance(static_cast<int64_t>(random() % 3));
    for (const auto& name : names) {
      for (const uint64_t id : read_all(*inboxes[name])) out += fmt::format("{}@{}:{} ", name, bus.now_ms(), id);
    }
    expect_balanced(bus.counters());
  }
  return out;
}

TEST(SimBus, TheSameSeedIsTheSameRun) {
  const std::string first = story(11, false);
  EXPECT_GT(first.size(), 3000u);
  EXPECT_EQ(first, story(11, false));
  EXPECT_EQ(first, story(11, true)) << "the order of setting up matters";
  EXPECT_NE(first, story(12, false));
}

TEST(SimBus, APartitionLosesWhatIsUnderwayAndIsNoticed) {
  SimBus bus({.seed = 4, .notice_ms = 10});
  bus.set_default_link({.min_delay_ms = 3, .max_delay_ms = 3});
  auto in_a = bus.inbox("a").value(), in_b = bus.inbox("b").value();
  auto ab = bus.outbox("a", "b"), ba = bus.outbox("b", "a");
  ASSERT_TRUE(send(*ab, 1).ok());
  bus.cut("a", "b");  // one way
  ASSERT_TRUE(send(*ab, 2).ok()) << "not noticed yet";
  ASSERT_TRUE(send(*ba, 3).ok());
  bus.advance(10);
  EXPECT_EQ(read_all(*in_b), Ids{});
  EXPECT_EQ(read_all(*in_a), Ids{3});
  EXPECT_EQ(send(*ab, 4).code(), StatusCode::kUnavailable);
  EXPECT_EQ(bus.counters().lost_partition, 2u);
  bus.heal("a", "b");
  ASSERT_TRUE(send(*ab, 5).ok());
  bus.advance(3);
  EXPECT_EQ(read_all(*in_b), Ids{5});
  expect_balanced(bus.counters());
}

TEST(SimBus, APauseHoldsAndADeathLoses) {
  SimBus bus({.seed = 5, .notice_ms = 10});
  bus.set_default_link({.min_delay_ms = 2, .max_delay_ms = 2});
  auto in_a = bus.inbox("a").value(), in_b = bus.inbox("b").value();
  auto ab = bus.outbox("a", "b"), ba = bus.outbox("b", "a");
  bus.pause("b");
  ASSERT_TRUE(send(*ab, 1).ok());
  bus.advance(100);
  EXPECT_EQ(read_all(*in_b), Ids{});
  bus.resume("b");
  EXPECT_EQ(read_all(*in_b), Ids{1});

  ASSERT_TRUE(send(*ab, 2).ok());
  bus.advance(2);                  // in its queue
  ASSERT_TRUE(send(*ab, 3).ok());  // on its way
  ASSERT_TRUE(send(*ba, 4).ok());  // its own last word
  bus.kill("b");
  EXPECT_FALSE(bus.alive("b"));
  EXPECT_EQ(send(*ba, 5).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(send(*ab, 6).ok()) << "not noticed yet";
  auto again = bus.inbox("b").value();  // a new incarnation, at once
  ASSERT_TRUE(send(*ab, 7).ok());
  bus.advance(2);
  EXPECT_EQ(read_all(*in_b), Ids{});
  EXPECT_EQ(read_all(*again), Ids{7}) << "what was sent to the dead is not the new one's";
  EXPECT_EQ(read_all(*in_a), Ids{4});
  EXPECT_EQ(bus.counters().lost_dead, 3u);
  EXPECT_EQ(send(*ba, 8).code(), StatusCode::kUnavailable) << "the old one's connection stays closed";
  in_b.reset();
  EXPECT_TRUE(bus.alive("b")) << "the old inbox's end is not the new one's";
  again.reset();
  EXPECT_FALSE(bus.alive("b"));
  bus.advance(10);
  EXPECT_EQ(send(*ab, 9).code(), StatusCode::kUnavailable);
  expect_balanced(bus.counters());
}

TEST(SimBus, IsBoundedAndKeepsRefusedMessages) {
  SimBus bus({.seed = 6, .capacity = 3});
  bus.set_default_link({.min_delay_ms = 1, .max_delay_ms = 1});
  auto out = bus.outbox("a", "b");
  EXPECT_EQ(send(*out, 1).code(), StatusCode::kUnavailable) << "b does not exist";
  auto in = bus.inbox("b").value();
  EXPECT_EQ(bus.inbox("b").status().code(), StatusCode::kConflict);
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(send(*out, id).ok());
  bus.advance(1);
  ASSERT_TRUE(send(*out, 3).ok());
  wire::Message message = numbered(4);
  EXPECT_EQ(out->send(message).code(), StatusCode::kResourceExhausted) << "two queued and one on its way";
  EXPECT_EQ(std::get<wire::AbortRequest>(message).id.value, 4u);
  EXPECT_TRUE(in->receive(0).has_value());
  EXPECT_TRUE(out->send(message).ok());
  EXPECT_TRUE(in->receive(0).has_value());
  wire::ChunkBatch large;
  large.chunks.resize(wire::kMaxBatchEntries + 1);
  message = large;
  EXPECT_EQ(out->send(message).code(), StatusCode::kTooLarge) << "what the codec refuses is refused here, too";
  EXPECT_EQ(bus.next_arrival_ms(), 2);
  EXPECT_EQ(bus.counters().refused, 3u);
}

TEST(SimBus, WakersAreReported) {
  SimBus bus({.seed = 7});
  auto in = bus.inbox("a").value();
  EXPECT_FALSE(bus.take_wake("a"));
  in->waker()->wake();
  EXPECT_TRUE(bus.take_wake("a"));
  EXPECT_FALSE(bus.take_wake("a"));
  EXPECT_FALSE(bus.take_wake("absent"));
}

}  // namespace
}  // namespace millrace
