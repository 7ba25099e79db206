// Cases about rule 1: every put and get ends once, however it ends; cancel, cleanup, close and deadlines in each state.
#include <algorithm>
#include <atomic>
#include <thread>

#include "relay/testing/fixture.h"

namespace millrace::relay_testing {
namespace {

constexpr int kShortLeaseMs = 200;
constexpr int kHeldLeaseMs = 1'000;  // long enough to get it meanwhile

void a_put_without_a_get_ends(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.lease_ms = kShortLeaseMs;
  options.credits = 2;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  Sent first = send(*pair.writer, 1, {1000});
  ASSERT_TRUE(first.ticket.ok());
  expect_put_end(first, {StatusCode::kDeadline});
  expect_quiet(*pair.writer);
  expect_refused(receive(*pair.reader, first), refused_codes(), "a put whose lease ran out");
}

void a_lease_takes_nothing_from_who_still_reads(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.lease_ms = kHeldLeaseMs;
  options.credits = 3;
  options.pool_bytes = 4 * kMib;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  Sent sent = send(*pair.writer, 1, {kMib, 100});
  ASSERT_TRUE(sent.ticket.ok());
  Result<Parts> got = receive(*pair.reader, sent).outcome();
  if (!got.ok() && sent.end.ready()) GTEST_SKIP() << "the machine is too slow for a lease of " << kHeldLeaseMs << " ms";
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  Parts parts = std::move(*got);
  EXPECT_EQ(differs(1, sent.sizes, parts), "");
  expect_put_end(sent, {StatusCode::kOk, StatusCode::kDeadline});
  // The memory is not given to others: what they put does not show in what is held here.
  for (uint64_t i = 0; i < 40; ++i) {
    Sent other = send(*pair.writer, 100 + i, {kMib / 2});
    if (!other.ticket.ok()) {
      EXPECT_EQ(other.ticket.status().code(), StatusCode::kResourceExhausted);
      continue;
    }
    ASSERT_EQ(differs(1, sent.sizes, parts), "");
    pair.writer->cancel(other.ticket->op);
    expect_put_end(other, {StatusCode::kCancelled, StatusCode::kDeadline});
  }
  EXPECT_EQ(differs(1, sent.sizes, parts), "");
  parts.clear();
  expect_quiet(*pair.writer);
  expect_quiet(*pair.reader);
}

void a_get_without_time_ends(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  Sent sent = send(*pair.writer, 1, {1000});
  ASSERT_TRUE(sent.ticket.ok());
  expect_refused(receive(*pair.reader, sent, 0), {StatusCode::kDeadline}, "timeout 0");
  expect_refused(receive(*pair.reader, sent, -5), {StatusCode::kDeadline}, "timeout -5");
  pair.writer->close();
  expect_put_end(sent, {StatusCode::kCancelled});
}

void cancel_of_a_put(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  // Before a reader asked for it.
  Sent early = send(*pair.writer, 1, {1000});
  ASSERT_TRUE(early.ticket.ok());
  pair.writer->cancel(early.ticket->op);
  expect_put_end(early, {StatusCode::kCancelled});
  expect_quiet(*pair.writer);
  expect_refused(receive(*pair.reader, early), refused_codes(), "a cancelled put");
  // While a reader holds it: its bytes stay what they are.
  Sent held = send(*pair.writer, 2, {kMib});
  Parts parts;
  ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, held, &parts));
  pair.writer->cancel(held.ticket->op);
  expect_put_end(held, {StatusCode::kOk, StatusCode::kCancelled});
  for (uint64_t i = 0; i < 10; ++i) expect_round_trip(*pair.writer, *pair.reader, 10 + i, {kMib});
  EXPECT_EQ(differs(2, held.sizes, parts), "");
  parts.clear();
  expect_quiet(*pair.writer);
  // After the end, twice, and of what never was.
  pair.writer->cancel(held.ticket->op);
  pair.writer->cancel(RelayOp{0});
  pair.writer->cancel(RelayOp{UINT64_MAX});
  EXPECT_EQ(held.end.count(), 1);
}

void cancel_of_a_get(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  for (uint64_t i = 0; i < 100; ++i) {
    Sent sent = send(*pair.writer, i, {i % 3 ? std::size_t{100} : 2 * kMib});
    ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
    Received received = receive(*pair.reader, sent);
    if (i % 4 == 1) std::this_thread::yield();
    if (received.op.ok()) pair.reader->cancel(*received.op);
    {
      const Result<Parts> parts = received.outcome();
      if (parts.ok()) {
        EXPECT_EQ(differs(i, sent.sizes, *parts), "");
      } else {
        EXPECT_EQ(parts.status().code(), StatusCode::kCancelled) << parts.status().to_string();
      }
    }
    EXPECT_LE(received.end.count(), 1);
    pair.writer->cancel(sent.ticket->op);
    expect_put_end(sent, {StatusCode::kOk, StatusCode::kCancelled});
  }
  expect_quiet(*pair.writer);
  expect_quiet(*pair.reader);
  expect_round_trip(*pair.writer, *pair.reader, 1000, {5000});
}

void cancel_while_it_moves(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  std::vector<std::byte> memory(8 * kMib);
  for (uint64_t i = 0; i < 40; ++i) {
    Sent sent = send(*pair.writer, i, {memory.size()});
    ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
    GetRequest request{.descriptor = sent.ticket->descriptor, .sizes = sent.sizes, .destination = {memory}};
    Received received;
    request.done = received.end.callback();
    received.op = pair.reader->get(std::move(request));
    std::this_thread::sleep_for(std::chrono::microseconds(i * 50));
    if (i % 2) {
      pair.writer->cancel(sent.ticket->op);
    } else if (received.op.ok()) {
      pair.reader->cancel(*received.op);
    }
    const Result<Parts> parts = received.outcome();
    // Once `done` was called the memory is ours: no thread of the relay writes into it (a sanitizer for threads sees it
    // otherwise).
    EXPECT_EQ(parts.ok() ? differs(i, sent.sizes, *parts) : "", "");
    std::fill(memory.begin(), memory.end(), std::byte{0x77});
    EXPECT_NE(parts.status().message(), "never: the get did not end");
    pair.writer->cancel(sent.ticket->op);
    expect_put_end(sent, {StatusCode::kOk, StatusCode::kCancelled});
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x77}), static_cast<std::ptrdiff_t>(memory.size()));
  }
  expect_quiet(*pair.writer);
  expect_quiet(*pair.reader);
}

void cleanup_ends_one_request_only(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  std::vector<Sent> mine, others;
  for (uint64_t i = 0; i < 3; ++i) {
    mine.push_back(send(*pair.writer, i, {1000 + i}, {.request = ReqId{7}}));
    others.push_back(send(*pair.writer, 10 + i, {1000 + i}, {.request = ReqId{8}}));
    ASSERT_TRUE(mine.back().ticket.ok() && others.back().ticket.ok());
  }
  pair.writer->cleanup(ReqId{7});
  pair.writer->cleanup(ReqId{9});
  for (Sent& sent : mine) expect_put_end(sent, {StatusCode::kCancelled});
  for (Sent& sent : others) {
    EXPECT_EQ(sent.end.count(), 0);
    ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent));
    expect_put_end(sent, {StatusCode::kOk});
  }
  for (Sent& sent : mine) expect_refused(receive(*pair.reader, sent), refused_codes(), "a cleaned-up put");
  expect_quiet(*pair.writer);
}

void close_ends_everything(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  Sent held = send(*pair.writer, 1, {kMib, 10}), open = send(*pair.writer, 2, {100});
  Parts parts;
  ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, held, &parts));
  pair.writer->close();
  // All has ended when close() returns.
  EXPECT_EQ(open.end.count(), 1);
  expect_put_end(open, {StatusCode::kCancelled});
  expect_put_end(held, {StatusCode::kOk, StatusCode::kCancelled});
  expect_refused(receive(*pair.reader, open, 10'000), refused_codes(), "a put of a relay that was closed");
  pair.writer->close();
  const Sent late = send(*pair.writer, 3, {100});
  EXPECT_EQ(late.ticket.status().code(), StatusCode::kUnavailable);
  expect_refused(receive(*pair.writer, open), {StatusCode::kUnavailable}, "a get of a relay that was closed");
  // What was received outlives both relays.
  pair.writer.reset();
  EXPECT_EQ(differs(1, held.sizes, parts), "");
  pair.reader->close();
  EXPECT_EQ(differs(1, held.sizes, parts), "");
  pair.reader.reset();
  EXPECT_EQ(differs(1, held.sizes, parts), "");
  EXPECT_EQ(held.end.count(), 1);
}

// Several threads put and get while one side closes under them, again and again.
void close_during_transfers(const ConformanceSetup& setup) {
  for (int round = 0; round < 12; ++round) {
    Pair pair = make_pair_of(setup, small_options(setup));
    ASSERT_TRUE(pair.writer && pair.reader);
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0}, moved{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; !stop; ++i) {
          Sent sent = send(*pair.writer, t * 1000 + i, {100, 300 * kKib}, {.request = ReqId{t}});
          if (!sent.ticket.ok()) {
            const StatusCode code = sent.ticket.status().code();
            if (code != StatusCode::kUnavailable && code != StatusCode::kResourceExhausted) ++wrong;
            std::this_thread::yield();
            continue;
          }
          Received received = receive(*pair.reader, sent, 20'000);
          {
            const Result<Parts> parts = received.outcome();
            if (parts.ok() && !differs(sent.seed, sent.sizes, *parts).empty()) ++wrong;
            if (!parts.ok() && parts.status().code() == StatusCode::kInternal) ++wrong;
            moved += parts.ok();
          }
          pair.writer->cancel(sent.ticket->op);  // where the reader was closed first
          if (!sent.end.wait_ready() || sent.end.count() != 1) ++wrong;
        }
      });
    }
    eventually([&] { return moved > round; });
    (round % 2 ? pair.writer : pair.reader)->close();
    stop = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    expect_quiet(*pair.writer);
    expect_quiet(*pair.reader);
  }
}

void destroyed_with_everything_open(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  std::vector<Sent> puts;
  std::vector<Received> gets;
  for (uint64_t i = 0; i < 8; ++i) {
    puts.push_back(send(*pair.writer, i, {2 * kMib}));
    ASSERT_TRUE(puts.back().ticket.ok());
    if (i % 2) gets.push_back(receive(*pair.reader, puts.back()));
  }
  pair.reader.reset();
  pair.writer.reset();
  for (Sent& put : puts) EXPECT_EQ(put.end.count(), 1);
  for (Received& get : gets) EXPECT_EQ(get.end.count(), get.op.ok() ? 1 : 0);
}

}  // namespace

std::vector<Case> ending_cases() {
  return {{"a_put_without_a_get_ends", a_put_without_a_get_ends},
          {"a_lease_takes_nothing_from_who_still_reads", a_lease_takes_nothing_from_who_still_reads},
          {"a_get_without_time_ends", a_get_without_time_ends},
          {"cancel_of_a_put", cancel_of_a_put},
          {"cancel_of_a_get", cancel_of_a_get},
          {"cancel_while_it_moves", cancel_while_it_moves},
          {"cleanup_ends_one_request_only", cleanup_ends_one_request_only},
          {"close_ends_everything", close_ends_everything},
          {"close_during_transfers", close_during_transfers},
          {"destroyed_with_everything_open", destroyed_with_everything_open}};
}

}  // namespace millrace::relay_testing
