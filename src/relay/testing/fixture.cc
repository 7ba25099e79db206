#include "relay/testing/fixture.h"

#include <algorithm>

namespace millrace::relay_testing {

RelayOptions small_options(const ConformanceSetup& setup) {
  RelayOptions options = setup.options;
  options.pool_bytes = 64 * kMib;
  options.credits = 16;
  options.lease_ms = 2 * kPatienceMs;
  return options;
}

std::unique_ptr<Relay> make_relay_of(const ConformanceSetup& setup, const RelayOptions& options) {
  Result<std::unique_ptr<Relay>> relay = setup.make(options);
  EXPECT_TRUE(relay.ok()) << relay.status().to_string();
  return relay.ok() ? std::move(*relay) : nullptr;
}

Pair make_pair_of(const ConformanceSetup& setup, const RelayOptions& options) {
  return {make_relay_of(setup, options), make_relay_of(setup, options)};
}

Sent send(Relay& writer, uint64_t seed, Sizes sizes, const SendHow& how) {
  Sent sent;
  sent.seed = seed;
  sent.sizes = std::move(sizes);
  PutRequest request;
  request.parts = make_parts(seed, sent.sizes);
  request.request = how.request;
  request.destination = how.destination;
  request.readers = how.readers;
  request.done = sent.end.callback();
  sent.ticket = writer.put(std::move(request));
  return sent;
}

Received receive(Relay& reader, const std::string& descriptor, const Sizes& sizes, int timeout_ms, ReqId id) {
  Received received;
  GetRequest request;
  request.descriptor = descriptor;
  request.sizes = sizes;
  request.timeout_ms = timeout_ms;
  request.request = id;
  request.done = received.end.callback();
  received.op = reader.get(std::move(request));
  return received;
}

Result<Parts> Received::outcome() {
  if (!op.ok()) {
    EXPECT_EQ(end.count(), 0) << "done was called although get() returned " << op.status().to_string();
    return op.status();
  }
  std::optional<Result<Parts>> result = end.wait();
  if (!result) return Status(StatusCode::kInternal, "never: the get did not end");
  return std::move(*result);
}

void expect_received(Relay& reader, const Sent& sent, Parts* kept) {
  ASSERT_TRUE(sent.ticket.ok()) << sent.ticket.status().to_string();
  Received received = receive(reader, sent);
  Result<Parts> parts = received.outcome();
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  EXPECT_EQ(differs(sent.seed, sent.sizes, *parts), "");
  if (kept) *kept = std::move(*parts);
}

void expect_put_end(Sent& sent, const std::vector<StatusCode>& codes) {
  const std::optional<Status> status = sent.end.wait();
  ASSERT_TRUE(status.has_value()) << "the put did not end";
  EXPECT_NE(std::find(codes.begin(), codes.end(), status->code()), codes.end()) << status->to_string();
  EXPECT_EQ(sent.end.count(), 1);
}

void expect_round_trip(Relay& writer, Relay& reader, uint64_t seed, Sizes sizes) {
  Sent sent = send(writer, seed, std::move(sizes));
  ASSERT_NO_FATAL_FAILURE(expect_received(reader, sent));
  expect_put_end(sent, {StatusCode::kOk});
}

void expect_refused(Received received, const std::vector<StatusCode>& codes, const std::string& what) {
  const Result<Parts> parts = received.outcome();
  ASSERT_FALSE(parts.ok()) << what << " was accepted";
  EXPECT_NE(std::find(codes.begin(), codes.end(), parts.status().code()), codes.end())
      << what << ": " << parts.status().to_string();
}

void expect_quiet(const Relay& relay) {
  const bool quiet = eventually([&] {
    const RelayBooks b = relay.books();
    return b.puts == 0 && b.gets == 0 && b.held_bytes == 0 && b.lent_parts == 0;
  });
  const RelayBooks b = relay.books();
  EXPECT_TRUE(quiet) << "puts " << b.puts << ", gets " << b.gets << ", held bytes " << b.held_bytes << ", lent parts "
                     << b.lent_parts << "; wanted 0 of all";
}

void expect_nothing_left(const ConformanceSetup& setup) {
  if (!setup.left_over) return;
  const bool clean = eventually([&] { return setup.left_over().empty(); });
  EXPECT_TRUE(clean) << "left over: " << setup.left_over();
}

const std::vector<StatusCode>& refused_codes() {
  static const std::vector<StatusCode> codes = {StatusCode::kInvalidArgument, StatusCode::kUnavailable};
  return codes;
}

}  // namespace millrace::relay_testing
