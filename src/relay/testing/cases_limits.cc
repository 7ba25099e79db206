// Cases about rule 2 and rule 3: limits are answers, and everything comes back.
#include "relay/testing/fixture.h"

namespace millrace::relay_testing {
namespace {

void credits_exhausted_and_back(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.credits = 4;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  for (int round = 0; round < 3; ++round) {
    std::vector<Sent> puts;
    for (uint64_t i = 0; i < 4; ++i) {
      puts.push_back(send(*pair.writer, i, {1000}));
      ASSERT_TRUE(puts.back().ticket.ok()) << puts.back().ticket.status().to_string();
    }
    const Sent fifth = send(*pair.writer, 5, {1000});
    ASSERT_FALSE(fifth.ticket.ok());
    EXPECT_EQ(fifth.ticket.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(fifth.end.count(), 0);
    // One comes back: one more may go, and only one.
    ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, puts[0]));
    expect_put_end(puts[0], {StatusCode::kOk});
    puts[0] = send(*pair.writer, 6, {1000});
    ASSERT_TRUE(puts[0].ticket.ok()) << puts[0].ticket.status().to_string();
    EXPECT_FALSE(send(*pair.writer, 7, {1000}).ticket.ok());
    for (Sent& put : puts) {
      ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, put));
      expect_put_end(put, {StatusCode::kOk});
    }
    expect_quiet(*pair.writer);
  }
}

void credit_stays_with_who_still_reads(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.credits = 1;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  const RelayCapabilities caps = pair.reader->capabilities();
  if (!caps.by_reference && !caps.mapped_receive) GTEST_SKIP() << "what this relay's reader holds is a copy";
  Sent sent = send(*pair.writer, 1, {5000, 10});
  Parts parts;
  ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent, &parts));
  // A slice of one part is enough to hold all.
  SharedBytes slice = parts[1].slice(3, 2);
  const Parts copies = parts;
  parts.clear();
  EXPECT_EQ(sent.end.count(), 0);
  EXPECT_FALSE(send(*pair.writer, 2, {10}).ticket.ok());
  EXPECT_EQ(differs(1, sent.sizes, copies), "");
  const_cast<Parts&>(copies).clear();
  EXPECT_EQ(sent.end.count(), 0);
  slice = {};
  expect_put_end(sent, {StatusCode::kOk});
  EXPECT_TRUE(eventually([&] { return pair.reader->books().lent_parts == 0; }));
  expect_round_trip(*pair.writer, *pair.reader, 3, {10});
}

void pool_exhausted_and_back(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.pool_bytes = 8 * kMib;
  options.credits = 64;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  std::vector<Sent> puts;
  Status refused;
  for (uint64_t i = 0; i < 20 && refused.ok(); ++i) {
    Sent sent = send(*pair.writer, i, {kMib});
    refused = sent.ticket.status();
    if (refused.ok()) puts.push_back(std::move(sent));
  }
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.to_string();
  EXPECT_LE(puts.size(), 8u);
  EXPECT_GE(puts.size(), 4u) << "less than half of the pool can be used";
  EXPECT_LE(pair.writer->books().held_bytes, options.pool_bytes);
  for (Sent& put : puts) {
    ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, put));
    expect_put_end(put, {StatusCode::kOk});
  }
  expect_quiet(*pair.writer);
  expect_round_trip(*pair.writer, *pair.reader, 99, {2 * kMib});
}

void oversize_and_out_of_range(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.pool_bytes = 2 * kMib;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  const std::size_t most = pair.writer->capabilities().max_put_bytes;
  const auto code = [&](Sizes sizes, const SendHow& how = {}) {
    const Sent sent = send(*pair.writer, 1, std::move(sizes), how);
    EXPECT_EQ(sent.end.count(), 0);
    return sent.ticket.status().code();
  };
  EXPECT_EQ(code({most + 1}), StatusCode::kTooLarge);
  EXPECT_EQ(code({most, 1}), StatusCode::kTooLarge);
  EXPECT_EQ(code(Sizes(kMaxRelayParts + 1, 0)), StatusCode::kTooLarge);
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1}, {.readers = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1}, {.readers = kMaxRelayReaders + 1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({1}, {.destination = std::string(5000, 'x')}), StatusCode::kInvalidArgument);
  expect_quiet(*pair.writer);
  expect_round_trip(*pair.writer, *pair.reader, 2, {1000});
}

void options_out_of_range(const ConformanceSetup& setup) {
  for (const auto& spoil : std::vector<void (*)(RelayOptions&)>{
           [](RelayOptions& o) { o.credits = 0; }, [](RelayOptions& o) { o.pool_bytes = 0; },
           [](RelayOptions& o) { o.lease_ms = 0; }, [](RelayOptions& o) { o.silent_ms = -1; }}) {
    RelayOptions options = small_options(setup);
    spoil(options);
    const auto relay = setup.make(options);
    ASSERT_FALSE(relay.ok());
    EXPECT_EQ(relay.status().code(), StatusCode::kInvalidArgument) << relay.status().to_string();
  }
}

// Aborts: no get ever reads what was put.
void puts_without_gets_10000(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.credits = 8;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  for (uint64_t i = 0; i < 10'000; ++i) {
    Sent sent = send(*pair.writer, i, {i % 5000, 3}, {.request = ReqId{i}});
    ASSERT_TRUE(sent.ticket.ok()) << "put " << i << ": " << sent.ticket.status().to_string();
    if (i % 2) {
      pair.writer->cancel(sent.ticket->op);
    } else {
      pair.writer->cleanup(ReqId{i});
    }
    const std::optional<Status> end = sent.end.wait();
    ASSERT_TRUE(end && end->code() == StatusCode::kCancelled) << "put " << i;
  }
  expect_quiet(*pair.writer);
  expect_round_trip(*pair.writer, *pair.reader, 1, {4000});
}

void releasing_twice_gives_one_credit(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.credits = 2;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  for (uint64_t i = 0; i < 20; ++i) {
    Sent sent = send(*pair.writer, i, {100});
    Parts parts;
    ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent, &parts));
    // The reader releases while the writer cancels, in both orders: the credit comes back once.
    if (i % 2) pair.writer->cancel(sent.ticket->op);
    parts.clear();
    if (i % 2 == 0) pair.writer->cancel(sent.ticket->op);
    expect_put_end(sent, {StatusCode::kOk, StatusCode::kCancelled});
    pair.writer->cancel(sent.ticket->op);
    pair.reader->cancel(sent.ticket->op);
    expect_quiet(*pair.writer);
  }
  Sent first = send(*pair.writer, 1, {100}), second = send(*pair.writer, 2, {100});
  EXPECT_TRUE(first.ticket.ok() && second.ticket.ok());
  EXPECT_FALSE(send(*pair.writer, 3, {100}).ticket.ok()) << "more credits than there are";
}

}  // namespace

std::vector<Case> limit_cases() {
  return {{"credits_exhausted_and_back", credits_exhausted_and_back},
          {"credit_stays_with_who_still_reads", credit_stays_with_who_still_reads},
          {"pool_exhausted_and_back", pool_exhausted_and_back},
          {"oversize_and_out_of_range", oversize_and_out_of_range},
          {"options_out_of_range", options_out_of_range},
          {"puts_without_gets_10000", puts_without_gets_10000},
          {"releasing_twice_gives_one_credit", releasing_twice_gives_one_credit}};
}

}  // namespace millrace::relay_testing
