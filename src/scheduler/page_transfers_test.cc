// KV pages from one scheduler to another, on fake runners whose pages have content.
#include "scheduler/page_transfers.h"

#include <gtest/gtest.h>

#include <random>

#include "base/log.h"
#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kFakeTokenBytes;
using testing::kRoomy;
using testing::Outcome;
using testing::predict;
using testing::prompt;

RunnerFacts with_bytes(RunnerFacts facts = kRoomy) {
  facts.weight_version = 1;
  facts.kv_page_bytes = facts.page_size * kFakeTokenBytes;
  return facts;
}

// Steps until the ticket is done.
PageTransfers::Done wait_for(Harness& h, uint64_t ticket) {
  for (int i = 0; i < 1000; ++i) {
    for (PageTransfers::Done& done : h.scheduler.transfers().take_done()) {
      if (done.ticket == ticket) return std::move(done);
    }
    h.step();
  }
  ADD_FAILURE() << "ticket " << ticket << " has no end";
  return {};
}

TransferPrefix prefix_of(const Harness& h, const std::vector<int32_t>& tokens, int32_t pages) {
  const auto count = static_cast<std::size_t>(pages) * 16;
  return {h.scheduler.transfers().space_of(""), {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)}};
}

Result<std::string> read(Harness& h, const TransferPrefix& prefix, int32_t first, int32_t count) {
  std::string bytes(static_cast<std::size_t>(count * 16 * kFakeTokenBytes), '\0');
  RETURN_IF_ERROR(h.scheduler.transfers().read(prefix, first, count, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

// `pages` of the prompt's prefix from one to the other.
void move_pages(Harness& from, Harness& to, const TransferPrefix& prefix, int32_t first, int32_t count) {
  const Result<std::string> bytes = read(from, prefix, first, count);
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  ASSERT_TRUE(to.scheduler.transfers().write(2, prefix, first, count, {SharedBytes::of(*bytes)}).ok());
  const PageTransfers::Done written = wait_for(to, 2);
  ASSERT_TRUE(written.status.ok()) << written.status.to_string();
}

TEST(PageTransfers, ARequestFindsPagesThatAnotherSchedulerComputed) {
  Harness p(with_bytes(), {}, endless()), d(with_bytes(), {}, endless());
  const std::vector<int32_t> tokens = prompt(100);
  p.receive(Harness::request(1, {tokens.begin(), tokens.begin() + 96}, 0));
  p.run();
  EXPECT_TRUE(p.outcomes.at(1).tokens.empty()) << "nothing is drawn";
  const TransferPrefix prefix = prefix_of(p, tokens, 6);
  EXPECT_EQ(p.scheduler.transfers().cached_pages(prefix), 6) << "the last page too";
  move_pages(p, d, prefix, 0, 4);
  move_pages(p, d, prefix, 4, 2);
  const wire::TokenizedRequest request = Harness::request(7, tokens, 20);
  d.receive(request);
  d.run();
  EXPECT_EQ(d.outcomes.at(7).usage.cached_tokens, 96);
  EXPECT_EQ(d.outcomes.at(7).tokens, predict(request, endless(), 1, 256).tokens);
  EXPECT_EQ(d.scheduler.facts().imported_tokens, 96u);
  EXPECT_EQ(p.scheduler.facts().exported_tokens, 96u);
  p.expect_clean_end();
  d.expect_clean_end();
}

TEST(PageTransfers, OtherNamespacesAndOtherTokensFindNothing) {
  Harness p(with_bytes(), {}, endless()), d(with_bytes(), {}, endless());
  const std::vector<int32_t> tokens = prompt(100);
  p.receive(Harness::request(1, tokens, 0));
  p.run();
  move_pages(p, d, prefix_of(p, tokens, 4), 0, 4);
  wire::TokenizedRequest salted = Harness::request(1, tokens, 5);
  salted.extra_key = "tenant";
  d.receive(salted);
  d.receive(Harness::request(2, prompt(100, 2), 5));
  d.run();
  EXPECT_EQ(d.outcomes.at(1).usage.cached_tokens, 0);
  EXPECT_EQ(d.outcomes.at(2).usage.cached_tokens, 0);
}

TEST(PageTransfers, ErrorsNameBothNumbersAndTakeNothing) {
  Harness h(with_bytes(), {}, endless());
  PageTransfers& transfers = h.scheduler.transfers();
  const TransferPrefix prefix = prefix_of(h, prompt(100), 4);
  const std::vector<SharedBytes> bytes = {SharedBytes::of(std::string(256 * 2, 'x'))};
  EXPECT_EQ(read(h, prefix, 0, 2).status().to_string(), "unavailable: 0 pages are cached; wanted 2");
  std::string small(255, '\0');
  EXPECT_EQ(transfers.read(prefix, 0, 1, std::as_writable_bytes(std::span(small))).to_string(),
            "invalid_argument: 255 bytes for 1 pages; wanted 256");
  EXPECT_EQ(transfers.write(1, prefix, 1, 2, bytes).to_string(), "unavailable: 0 pages are cached; wanted 1");
  EXPECT_EQ(transfers.write(1, prefix, 0, 1, bytes).to_string(), "invalid_argument: 512 bytes for 1 pages; wanted 256");
  EXPECT_EQ(transfers.write(1, prefix, 3, 2, bytes).to_string(),
            "invalid_argument: pages [3, 5) of 64 tokens; wanted pages of 16 tokens inside");
  TransferPrefix old = prefix;
  old.space.weight_version = 9;
  EXPECT_EQ(transfers.write(1, old, 0, 2, bytes).code(), StatusCode::kConflict);
  EXPECT_FALSE(h.scheduler.busy());
  h.expect_clean_end();
}

TEST(PageTransfers, ALayerSplitAndAServerWithoutACacheHaveNone) {
  Harness chain(kRoomy, {}, endless());
  EXPECT_EQ(chain.scheduler.transfers().supported().code(), StatusCode::kUnsupported);
  Harness no_cache(with_bytes(), {.prefix_cache = false}, endless());
  EXPECT_EQ(no_cache.scheduler.transfers().supported().code(), StatusCode::kUnsupported);
}

TEST(PageTransfers, AWriteIsNotPublishedAfterASwitchOfTheWeights) {
  Harness h(with_bytes(), {}, endless());
  const TransferPrefix prefix = prefix_of(h, prompt(100), 2);
  const std::vector<SharedBytes> bytes = {SharedBytes::of(std::string(512, 'x'))};
  ASSERT_TRUE(h.scheduler.transfers().write(1, prefix, 0, 2, bytes).ok());
  h.switch_weights({.version = 2});
  EXPECT_EQ(wait_for(h, 1).status.code(), StatusCode::kConflict);
  EXPECT_EQ(h.scheduler.facts().pages_cached, 0);
  h.run();
  h.expect_clean_end();
}

TEST(PageTransfers, AFailedStepAndALossOfAllKvPublishNothing) {
  log_init("test", LogLevel::kOff);
  Harness h(with_bytes(), {}, endless());
  const TransferPrefix prefix = prefix_of(h, prompt(100), 2);
  const std::vector<SharedBytes> bytes = {SharedBytes::of(std::string(512, 'x'))};
  h.runner.fail_step = [](const Batch&) { return internal_error("a fault"); };
  ASSERT_TRUE(h.scheduler.transfers().write(1, prefix, 0, 2, bytes).ok());
  EXPECT_EQ(wait_for(h, 1).status.code(), StatusCode::kInternal);
  h.runner.fail_step = nullptr;
  h.runner.refuse = [](const Batch&) { return internal_error("a refusal"); };
  ASSERT_TRUE(h.scheduler.transfers().write(2, prefix, 0, 2, bytes).ok());
  EXPECT_EQ(wait_for(h, 2).status.code(), StatusCode::kInternal);
  h.runner.refuse = nullptr;
  ASSERT_TRUE(h.scheduler.transfers().write(3, prefix, 0, 2, bytes).ok());
  h.runner.on_poll = [&] { h.runner.lose_kv(1); };
  EXPECT_EQ(wait_for(h, 3).status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(h.scheduler.facts().pages_cached, 0);
  h.run();
  h.expect_clean_end();
}

// Of two writes in flight the first one's batch fails. The second has stored the last layers, and the first ones have
// never come.
TEST(PageTransfers, APageThatLacksTheLayersOfAFailedWriteIsNotPublished) {
  log_init("test", LogLevel::kOff);
  RunnerFacts facts = with_bytes();
  facts.layers = testing::kFakeLayers;
  Harness h(facts, {}, endless());
  h.runner.polls_per_step = 1;
  h.runner.fail_step = [](const Batch& batch) {
    return batch.writes.front().layers.begin == 0 ? internal_error("a fault") : ok_status();
  };
  PageTransfers& transfers = h.scheduler.transfers();
  const TransferPrefix prefix = prefix_of(h, prompt(100), 2);
  const std::vector<SharedBytes> half = {SharedBytes::of(std::string(256, 'x'))};
  ASSERT_TRUE(transfers.write_layers(1, 7, prefix, 0, 2, {0, 2}, half).ok());
  h.step();  // submitted, and not polled yet
  ASSERT_TRUE(transfers.write_layers(2, 7, prefix, 0, 2, {2, 4}, half).ok());
  EXPECT_EQ(wait_for(h, 1).status.code(), StatusCode::kInternal);
  h.run();
  EXPECT_EQ(h.runner.most_in_flight, 2);
  EXPECT_EQ(h.scheduler.facts().pages_cached, 0);
  h.expect_clean_end();
}

// 8 pages. Two prompts of 4 pages; the first is leased, so the second evicts nothing of it.
TEST(PageTransfers, ALeaseKeepsAPrefixUntilItEndsOrIsNeeded) {
  RunnerFacts facts = with_bytes();
  facts.page_count = 8;
  Harness h(facts, {}, endless());
  PageTransfers& transfers = h.scheduler.transfers();
  const std::vector<int32_t> first = prompt(64), second = prompt(64, 300), large = prompt(120, 600);
  h.receive(Harness::request(1, first, 0));
  h.run();
  const TransferPrefix prefix = prefix_of(h, first, 4);
  EXPECT_EQ(transfers.lease(5, prefix), 4);
  EXPECT_EQ(transfers.lease(5, prefix), 4) << "again";
  h.receive(Harness::request(2, second, 0));
  h.receive(Harness::request(3, prompt(64, 450), 0));
  h.run();
  EXPECT_EQ(transfers.cached_pages(prefix), 4);
  EXPECT_EQ(transfers.lease(6, prefix_of(h, prompt(64, 450), 4)), 4) << "cached, but more than half of the pool";
  EXPECT_EQ(h.scheduler.facts().leases, 1);
  // One that runs alone may use all pages: it is not too long.
  h.receive(Harness::request(4, large, 8));
  h.run();
  EXPECT_EQ(h.outcomes.at(4).finish->reason, wire::FinishReason::kLength);
  EXPECT_EQ(h.scheduler.facts().leases, 0);
  EXPECT_EQ(h.scheduler.facts().revoked_leases, 1u);
  EXPECT_LT(transfers.cached_pages(prefix), 4);
  h.expect_clean_end();
}

// 8 pages, and a host tier. What goes there is read meanwhile; what comes back, when it is there.
TEST(PageTransfers, OfTheHostTierAReadWaitsForWhatComesBackAlone) {
  log_init("test", LogLevel::kOff);
  RunnerFacts facts = with_bytes();
  facts.page_count = 8;
  facts.host_page_count = 32;
  Harness h(facts, {}, endless());
  const std::vector<int32_t> first = prompt(100);
  for (const int32_t seed : {1, 300, 600}) {
    h.receive(Harness::request(static_cast<uint64_t>(seed), prompt(100, seed), 0));
    h.run();
    const std::vector<int32_t> tokens = prompt(100, seed);
    EXPECT_TRUE(read(h, prefix_of(h, tokens, 6), 0, 6).ok()) << "copies to the host tier are due: " << seed;
  }
  const TransferPrefix prefix = prefix_of(h, first, 6);
  EXPECT_EQ(h.scheduler.transfers().cached_pages(prefix), 0);
  // The batch that would bring them back is refused, and nothing else is to be done.
  h.runner.refuse = [](const Batch&) { return internal_error("a refusal"); };
  h.receive(Harness::request(7, first, 0));
  h.run();
  h.runner.refuse = nullptr;
  ASSERT_EQ(h.scheduler.transfers().cached_pages(prefix), 6);
  EXPECT_EQ(read(h, prefix, 0, 6).status().code(), StatusCode::kResourceExhausted);
  h.run();
  EXPECT_TRUE(read(h, prefix, 0, 6).ok());
  h.expect_clean_end();
}

TEST(PageTransfers, AFlushEndsLeases) {
  Harness h(with_bytes(), {}, endless());
  h.receive(Harness::request(1, prompt(64), 0));
  h.run();
  EXPECT_EQ(h.scheduler.transfers().lease(1, prefix_of(h, prompt(64), 4)), 4);
  EXPECT_TRUE(h.scheduler.flush_cache().ok());
  EXPECT_EQ(h.scheduler.facts().pages_free, 256);
}

// Two schedulers from a seed: requests come to both, prefixes move between them at random moments, leases come and go,
// memory is short, steps fail. Invariants: after each step the books balance (Harness); every text is that of the
// oracle; in the end nothing is held, locked or leased.
class Pair {
 public:
  explicit Pair(uint64_t seed) : random_(seed), p_(small(), options(), endless()), d_(small(), options(), endless()) {}

  struct Counts {
    uint64_t moved = 0;    // writes that were published
    uint64_t hits = 0;     // requests that found something cached
    uint64_t refused = 0;  // writes: pools that were full, prefixes that were evicted
    uint64_t late = 0;     // reads while pages came back from the host tier
  };
  void run(Counts& counts) {
    p_.runner.polls_per_step = static_cast<int>(pick(3));
    for (int i = 0; i < 150; ++i) {
      if (pick(4) == 0) send(p_, 0);
      if (pick(4) == 0) send(d_, 1 + pick(30));
      if (pick(3) == 0) move(counts);
      if (pick(9) == 0) p_.scheduler.transfers().end_lease(pick(4));
      if (pick(40) == 0) (void)p_.scheduler.flush_cache();
      fail_next_ = pick(30) == 0;
      p_.step();
      d_.step();
      for (const PageTransfers::Done& done : d_.scheduler.transfers().take_done()) counts.moved += done.status.ok();
    }
    fail_next_ = false;
    for (uint64_t lease = 0; lease < 4; ++lease) p_.scheduler.transfers().end_lease(lease);
    for (Harness* h : {&p_, &d_}) {
      h->run();
      h->expect_clean_end();
    }
    for (const auto& [id, request] : sent_) {
      const Outcome& outcome = d_.outcomes.at(id);
      if (outcome.finish->reason != wire::FinishReason::kLength) continue;  // a failed step
      EXPECT_EQ(outcome.tokens, predict(request, endless(), 1, 256).tokens) << id;
      counts.hits += outcome.usage.cached_tokens > 0;
    }
  }

 private:
  RunnerFacts small() {
    RunnerFacts facts = with_bytes();
    facts.page_count = 20 + static_cast<int32_t>(pick(30));
    facts.host_page_count = pick(2) == 0 ? 0 : 16;
    return facts;
  }
  SchedulerOptions options() {
    SchedulerOptions options;
    options.chunked_prefill_tokens = 64;
    options.overlap = pick(3) != 0;
    return options;
  }
  uint64_t pick(uint64_t count) { return random_() % count; }
  std::vector<int32_t> any_prompt() { return prompt(20 + static_cast<int32_t>(pick(180)), 1 + 100 * int(pick(3))); }

  void send(Harness& h, uint64_t max_tokens) {
    const wire::TokenizedRequest request = Harness::request(++next_id_, any_prompt(), static_cast<int32_t>(max_tokens));
    if (&h == &d_) sent_[next_id_] = request;
    h.runner.fail_step = [this](const Batch&) { return fail_next_ ? internal_error("a fault") : ok_status(); };
    h.receive(request);
  }

  void move(Counts& counts) {
    const std::vector<int32_t> tokens = any_prompt();
    const TransferPrefix prefix = prefix_of(p_, tokens, static_cast<int32_t>(tokens.size()) / 16);
    PageTransfers& transfers = p_.scheduler.transfers();
    const int32_t cached = pick(2) == 0 ? transfers.lease(pick(4), prefix) : transfers.cached_pages(prefix);
    if (cached == 0) return;
    const auto first = static_cast<int32_t>(pick(static_cast<uint64_t>(cached)));
    const Result<std::string> bytes = read(p_, prefix, first, cached - first);
    counts.late += bytes.status().code() == StatusCode::kResourceExhausted;
    if (!bytes.ok()) return;
    const std::vector<SharedBytes> shared = {SharedBytes::of(*bytes)};
    counts.refused += !d_.scheduler.transfers().write(++next_id_, prefix, first, cached - first, shared).ok();
  }

  std::mt19937_64 random_;
  Harness p_, d_;
  uint64_t next_id_ = 0;
  bool fail_next_ = false;
  std::map<uint64_t, wire::TokenizedRequest> sent_;
};

TEST(PageTransfers, UnderLoadNoTextIsWrongAndTheBooksBalance) {
  log_init("test", LogLevel::kOff);
  Pair::Counts counts;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Pair(seed).run(counts);
    if (HasFailure()) return;
  }
  EXPECT_GT(counts.moved, 2000u);
  EXPECT_GT(counts.hits, 2000u);
  EXPECT_GT(counts.refused, 500u);
  EXPECT_GT(counts.late, 5u);
}

}  // namespace
}  // namespace millrace
