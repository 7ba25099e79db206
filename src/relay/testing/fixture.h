// For the suite's cases: two relays, and short ways to send, to receive and to look at the books. Uses gtest.
//
// Thread safety: a Sent or Received belongs to one thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "relay/testing/await.h"
#include "relay/testing/conformance.h"
#include "relay/testing/patterns.h"

namespace millrace::relay_testing {

inline constexpr std::size_t kKib = 1024;
inline constexpr std::size_t kMib = 1024 * kKib;

// One case: a name and what it does. It may GTEST_SKIP.
struct Case {
  const char* name;
  void (*run)(const ConformanceSetup& setup);
};
std::vector<Case> basic_cases();
std::vector<Case> limit_cases();
std::vector<Case> ending_cases();
std::vector<Case> descriptor_cases();
std::vector<Case> process_cases();

using Parts = std::vector<SharedBytes>;
using Sizes = std::vector<std::size_t>;

// What most cases run with: small, so that limits are near.
RelayOptions small_options(const ConformanceSetup& setup);
// Fails the test and returns null when there is none.
std::unique_ptr<Relay> make_relay_of(const ConformanceSetup& setup, const RelayOptions& options);

struct Pair {
  std::unique_ptr<Relay> writer;
  std::unique_ptr<Relay> reader;
};
Pair make_pair_of(const ConformanceSetup& setup, const RelayOptions& options);

struct Sent {
  Result<PutTicket> ticket = Status(StatusCode::kInternal, "not sent");
  AwaitPut end;
  uint64_t seed = 0;
  Sizes sizes;
};
struct SendHow {
  ReqId request{1};
  std::string destination;
  int readers = 1;
};
Sent send(Relay& writer, uint64_t seed, Sizes sizes, const SendHow& how = {});

struct Received {
  Result<RelayOp> op = Status(StatusCode::kInternal, "not asked");
  AwaitGet end;
  // The end, whether it came from the call or through `done`. kInternal "never" where it did not come.
  Result<Parts> outcome();
};
Received receive(Relay& reader, const std::string& descriptor, const Sizes& sizes, int timeout_ms = kPatienceMs,
                 ReqId request = ReqId{1});
inline Received receive(Relay& reader, const Sent& sent, int timeout_ms = kPatienceMs) {
  return receive(reader, sent.ticket->descriptor, sent.sizes, timeout_ms);
}

// Receives, compares, releases, and waits for the end of the put.
void expect_round_trip(Relay& writer, Relay& reader, uint64_t seed, Sizes sizes);
// A whole transfer of what was sent already; the parts are in `kept` where it is given.
void expect_received(Relay& reader, const Sent& sent, Parts* kept = nullptr);
// The put ends, with one of these codes, and only once.
void expect_put_end(Sent& sent, const std::vector<StatusCode>& codes);
// The get ends with an error of these codes.
void expect_refused(Received received, const std::vector<StatusCode>& codes, const std::string& what);
// All books back, sooner or later.
void expect_quiet(const Relay& relay);
void expect_nothing_left(const ConformanceSetup& setup);

// What a descriptor that names nothing (any more) may end with.
const std::vector<StatusCode>& refused_codes();

}  // namespace millrace::relay_testing
