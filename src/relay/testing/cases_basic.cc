// Cases that any healthy pair of relays passes: bytes arrive as they were, in whatever number, from whichever thread.
#include <atomic>
#include <cstring>
#include <thread>

#include "base/rng.h"
#include "relay/testing/fixture.h"
#include "wire/limits.h"

namespace millrace::relay_testing {
namespace {

void reports_what_it_is(const ConformanceSetup& setup) {
  const RelayOptions options = small_options(setup);
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  const RelayCapabilities caps = pair.writer->capabilities();
  EXPECT_FALSE(caps.name.empty());
  EXPECT_LE(caps.name.size(), 16u);
  EXPECT_GT(caps.max_put_bytes, 0u);
  EXPECT_LE(caps.max_put_bytes, options.pool_bytes);
  EXPECT_TRUE(caps.same_process || caps.same_host || caps.across_hosts);
  EXPECT_FALSE(pair.writer->address().empty());
  EXPECT_LE(pair.writer->address().size(), wire::kMaxRelayAddressBytes);
  EXPECT_NE(pair.writer->address(), pair.reader->address());
  expect_quiet(*pair.writer);
  EXPECT_EQ(pair.writer->books().bad_frames, 0u);
}

void round_trips_10000(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    // Both directions; a large list now and then.
    const bool large = seed % 500 == 0;
    const Sizes sizes = random_sizes(seed, large ? 64 : 8, large ? kMib : 8 * kKib);
    Relay& writer = seed % 2 ? *pair.writer : *pair.reader;
    Relay& reader = seed % 2 ? *pair.reader : *pair.writer;
    expect_round_trip(writer, reader, seed, sizes);
    if (testing::Test::HasFailure()) {
      FAIL() << "at seed " << seed << ", sizes " << testing::PrintToString(sizes);
    }
  }
  expect_quiet(*pair.writer);
  expect_quiet(*pair.reader);
}

void many_parts(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  Sizes sizes;
  for (std::size_t i = 0; i < kMaxRelayParts; ++i) sizes.push_back(i % 130);
  expect_round_trip(*pair.writer, *pair.reader, 7, sizes);
  expect_round_trip(*pair.writer, *pair.reader, 8, Sizes(kMaxRelayParts, 0));
  expect_round_trip(*pair.writer, *pair.reader, 9, {0});
  expect_round_trip(*pair.writer, *pair.reader, 10, {1});
}

void the_largest_put(const ConformanceSetup& setup) {
  RelayOptions options = small_options(setup);
  options.pool_bytes = 8 * kMib;
  Pair pair = make_pair_of(setup, options);
  ASSERT_TRUE(pair.writer && pair.reader);
  const std::size_t most = pair.writer->capabilities().max_put_bytes;
  ASSERT_GE(most, 2u);
  expect_round_trip(*pair.writer, *pair.reader, 3, {most});
  expect_round_trip(*pair.writer, *pair.reader, 4, {most / 2, most - most / 2});
}

void parts_are_aligned(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  const Sent sent = send(*pair.writer, 5, {1, 3, 64, 0, 65, 4097, 2});
  Parts parts;
  ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent, &parts));
  for (const SharedBytes& part : parts) {
    if (part.empty()) continue;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data()) % kBufferAlignment, 0u);
  }
}

void by_reference_or_mapped_as_reported(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  if (!pair.writer->capabilities().by_reference) GTEST_SKIP() << "this relay does not hand out references";
  const SharedBytes bytes = make_part(1, 0, 1000);
  AwaitPut put_end;
  const Result<PutTicket> ticket = pair.writer->put({.parts = {bytes}, .done = put_end.callback()});
  ASSERT_TRUE(ticket.ok()) << ticket.status().to_string();
  Received received = receive(*pair.reader, ticket->descriptor, {1000});
  const Result<Parts> parts = received.outcome();
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  EXPECT_EQ((*parts)[0].data(), bytes.data());
}

void destination_buffers(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  for (const Sizes& sizes : {Sizes{100, 0, 5000}, Sizes{1}, Sizes{3 * kMib + 1, 17}}) {
    Sent sent = send(*pair.writer, 11, sizes);
    ASSERT_TRUE(sent.ticket.ok());
    GetRequest request{.descriptor = sent.ticket->descriptor, .sizes = sizes};
    std::vector<std::vector<std::byte>> memory;
    for (const std::size_t size : sizes) memory.emplace_back(size + 2, std::byte{0xA5});
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      request.destination.push_back(std::span(memory[i]).subspan(1, sizes[i]));  // unaligned on purpose
    }
    Received received;
    request.done = received.end.callback();
    received.op = pair.reader->get(std::move(request));
    const Result<Parts> parts = received.outcome();
    ASSERT_TRUE(parts.ok()) << parts.status().to_string();
    EXPECT_EQ(differs(11, sizes, *parts), "");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ((*parts)[i].owner(), nullptr);
      EXPECT_TRUE(sizes[i] == 0 || (*parts)[i].data() == memory[i].data() + 1);
      EXPECT_EQ(memory[i].front(), std::byte{0xA5});
      EXPECT_EQ(memory[i].back(), std::byte{0xA5});
    }
    expect_put_end(sent, {StatusCode::kOk});  // nothing is held: the bytes were copied
  }
}

void sizes_that_disagree(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  Sent sent = send(*pair.writer, 12, {100, 200});
  ASSERT_TRUE(sent.ticket.ok());
  const std::string& descriptor = sent.ticket->descriptor;
  const std::vector<StatusCode> wanted = {StatusCode::kInvalidArgument};
  for (const Sizes& sizes :
       {Sizes{}, Sizes{300}, Sizes{200, 100}, Sizes{100, 201}, Sizes{100, 200, 0}, Sizes{100, SIZE_MAX}}) {
    expect_refused(receive(*pair.reader, descriptor, sizes), wanted, "sizes " + testing::PrintToString(sizes));
  }
  std::vector<std::byte> memory(300);
  for (const std::vector<std::size_t>& spans : {Sizes{100}, Sizes{100, 199}, Sizes{200, 100}, Sizes{0, 0}}) {
    GetRequest request{.descriptor = descriptor, .sizes = sent.sizes};
    for (const std::size_t size : spans) request.destination.push_back(std::span(memory).first(size));
    Received received;
    request.done = received.end.callback();
    received.op = pair.reader->get(std::move(request));
    expect_refused(std::move(received), wanted, "destination " + testing::PrintToString(spans));
  }
  // None of this harmed the put.
  expect_received(*pair.reader, sent);
  expect_put_end(sent, {StatusCode::kOk});
}

// One thread's share: sends, receives, holds a few for a while.
void work(Relay& writer, Relay& reader, uint64_t thread, int rounds, std::atomic<int>& failures) {
  std::vector<std::pair<Sent, Parts>> kept;
  for (int i = 0; i < rounds; ++i) {
    const uint64_t seed = thread * 1'000'000 + static_cast<uint64_t>(i);
    Sent sent;
    // Others may have taken all credits: that is an answer, and one tries again.
    const bool sent_once = eventually([&] {
      sent = send(writer, seed, random_sizes(seed, 5, 64 * kKib), {.request = ReqId{thread}});
      return sent.ticket.ok() || sent.ticket.status().code() != StatusCode::kResourceExhausted;
    });
    if (!sent_once || !sent.ticket.ok()) return void(++failures);
    Received received = receive(reader, sent);
    Result<Parts> parts = received.outcome();
    if (!parts.ok() || !differs(seed, sent.sizes, *parts).empty()) return void(++failures);
    kept.emplace_back(std::move(sent), std::move(*parts));
    if (kept.size() < 2) continue;
    for (auto& [put, held] : kept) {
      if (!differs(put.seed, put.sizes, held).empty()) ++failures;
      held.clear();
      const std::optional<Status> end = put.end.wait();
      if (!end || !end->ok() || put.end.count() != 1) ++failures;
    }
    kept.clear();
  }
}

void many_threads(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 6; ++t) {
    Relay& writer = t % 2 ? *pair.writer : *pair.reader;
    Relay& reader = t % 2 ? *pair.reader : *pair.writer;
    threads.emplace_back([&, t] { work(writer, reader, t, 100, failures); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  expect_quiet(*pair.writer);
  expect_quiet(*pair.reader);
}

void two_readers_of_one_put(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  std::unique_ptr<Relay> second = make_relay_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader && second);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Sent sent = send(*pair.writer, seed, {100, 70'000}, {.readers = 2});
    ASSERT_NO_FATAL_FAILURE(expect_received(*pair.reader, sent));
    EXPECT_EQ(sent.end.count(), 0) << "over after the first of two readers";
    ASSERT_NO_FATAL_FAILURE(expect_received(*second, sent));
    expect_put_end(sent, {StatusCode::kOk});
  }
  expect_quiet(*pair.writer);
}

void callbacks_may_call_the_relay(const ConformanceSetup& setup) {
  Pair pair = make_pair_of(setup, small_options(setup));
  ASSERT_TRUE(pair.writer && pair.reader);
  // The end of one put begins the next, and so on.
  struct Chain {
    Relay& writer;
    Relay& reader;
    std::atomic<int> left{50};
    AwaitPut over;
    void next() {
      if (left.fetch_sub(1) == 0) return over.callback()(ok_status());
      const Result<PutTicket> ticket = writer.put({.parts = {make_part(1, 0, 5000)}, .done = [this](const Status& end) {
                                                     if (!end.ok()) return over.callback()(end);
                                                     next();
                                                   }});
      if (!ticket.ok()) return over.callback()(ticket.status());
      const Result<RelayOp> op =
          reader.get({.descriptor = ticket->descriptor, .sizes = {5000}, .done = [this](Result<Parts> parts) {
                        if (!parts.ok()) over.callback()(parts.status());
                      }});
      if (!op.ok()) over.callback()(op.status());
    }
  } chain{*pair.writer, *pair.reader};
  chain.next();
  const std::optional<Status> end = chain.over.wait();
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok()) << end->to_string();
  pair.reader->close();
  pair.writer->close();
}

}  // namespace

std::vector<Case> basic_cases() {
  return {{"reports_what_it_is", reports_what_it_is},
          {"round_trips_10000", round_trips_10000},
          {"many_parts", many_parts},
          {"the_largest_put", the_largest_put},
          {"parts_are_aligned", parts_are_aligned},
          {"by_reference_or_mapped_as_reported", by_reference_or_mapped_as_reported},
          {"destination_buffers", destination_buffers},
          {"sizes_that_disagree", sizes_that_disagree},
          {"many_threads", many_threads},
          {"two_readers_of_one_put", two_readers_of_one_put},
          {"callbacks_may_call_the_relay", callbacks_may_call_the_relay}};
}

}  // namespace millrace::relay_testing
