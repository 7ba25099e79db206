// The TCP relay among bad peers: raw sockets that break the protocol, a proxy that tampers, secrets that differ.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <filesystem>

#include "relay/session/frame.h"
#include "relay/tcp/limits.h"
#include "relay/tcp/outgoing_frame.h"
#include "relay/tcp/tcp_relay.h"
#include "relay/testing/fixture.h"
#include "relay/testing/tcp_proxy.h"

namespace millrace::tcp {
namespace {

using namespace relay_testing;  // NOLINT: short names for a test

const ConformanceSetup kSetup{.name = "tcp", .make = [](const RelayOptions& o) { return make_tcp_relay(o); }};

RelayOptions options() {
  RelayOptions o = small_options(kSetup);
  o.streams = 1;  // what the proxy counts is then known
  return o;
}

// Of a writer whose reader comes back after a break, however busy the machine is.
RelayOptions with_time_to_return(RelayOptions options) {
  options.silent_ms = kPatienceMs;
  return options;
}

std::size_t open_fds() {
  const auto fds = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(fds), end(fds)));
}

Result<Parts> get_through(Relay& reader, const Sent& sent, const Proxy& proxy, int timeout_ms = kPatienceMs) {
  return receive(reader, proxy.reroute(sent.ticket->descriptor), sent.sizes, timeout_ms).outcome();
}

// ---- a proxy that tampers -------------------------------------------------------------------------------------------

// What the writer sends on a connection of a get without a secret: WELCOME, then DATA frames with their checksums.
constexpr uint64_t kFirstData = kHeaderBytes;
constexpr uint64_t kFirstByte = kFirstData + kHeaderBytes;
constexpr uint64_t kLastByte = kFirstByte + kFrameBytes - 1;
constexpr uint64_t kTrailer = kLastByte + 1;
constexpr uint64_t kSecondData = kTrailer + kTrailerBytes;

// The connection is broken with the get, so no RELEASE arrives: the writer ends the put silent_ms later.
TEST(TcpTamper, AFlippedByteIsNeverDelivered) {
  const Pair pair = make_pair_of(kSetup, options());
  for (const uint64_t at :
       {kFirstByte, kFirstByte + 4096, kLastByte, kTrailer, kTrailer + 7, kSecondData + kHeaderBytes}) {
    Sent sent = send(*pair.writer, 5, {3 * kFrameBytes / 2, 77});
    const Proxy proxy(pair.writer->address(), Mischief::kFlip, at);
    const auto reader = make_relay_of(kSetup, options());
    const Result<Parts> parts = get_through(*reader, sent, proxy);
    ASSERT_FALSE(parts.ok()) << "byte " << at;
    EXPECT_EQ(parts.status().code(), StatusCode::kInternal) << parts.status().to_string();
    EXPECT_TRUE(eventually([&] { return reader->books().bad_frames > 0; }));
    expect_quiet(*reader);
    expect_put_end(sent, {StatusCode::kUnavailable});
  }
  expect_round_trip(*pair.writer, *pair.reader, 6, {3 * kFrameBytes / 2, 77});  // the writer is as good as before
}

TEST(TcpTamper, AFlippedHeaderBreaksTheConnectionAndTheGetGoesOn) {
  const auto writer = make_relay_of(kSetup, with_time_to_return(options()));
  for (const uint64_t at : {kFirstData, kFirstData + 8, kFirstData + 40, kFirstData + 63, kSecondData + 32}) {
    Sent sent = send(*writer, at, {2 * kFrameBytes});
    const Proxy proxy(writer->address(), Mischief::kFlip, at, 1);
    const auto reader = make_relay_of(kSetup, options());
    const Result<Parts> parts = get_through(*reader, sent, proxy);
    ASSERT_TRUE(parts.ok()) << "byte " << at << ": " << parts.status().to_string();
    EXPECT_EQ(differs(sent.seed, sent.sizes, *parts), "");
    EXPECT_EQ(proxy.connections(), 2);
    expect_put_end(sent, {StatusCode::kOk});
  }
}

TEST(TcpTamper, ACutConnectionIsMadeAgainOnce) {
  const auto writer = make_relay_of(kSetup, with_time_to_return(options()));
  const Pair pair = make_pair_of(kSetup, options());
  for (const uint64_t at : {kFirstData + 10, kFirstByte + 1000, kTrailer + 3, kSecondData, kSecondData + 100}) {
    Sent sent = send(*writer, at, {3 * kFrameBytes});
    {
      const Proxy once(writer->address(), Mischief::kCut, at, 1);
      const auto reader = make_relay_of(kSetup, options());
      const Result<Parts> parts = get_through(*reader, sent, once);
      ASSERT_TRUE(parts.ok()) << "cut at " << at << ": " << parts.status().to_string();
      EXPECT_EQ(differs(sent.seed, sent.sizes, *parts), "");
      expect_put_end(sent, {StatusCode::kOk});  // while the reader lives: its acknowledgement may be on its way
    }
    Sent again = send(*pair.writer, at, {3 * kFrameBytes});
    const Proxy always(pair.writer->address(), Mischief::kCut, at);
    const Result<Parts> parts = get_through(*pair.reader, again, always);
    ASSERT_FALSE(parts.ok());
    EXPECT_EQ(parts.status().code(), StatusCode::kUnavailable) << parts.status().to_string();
    EXPECT_EQ(always.connections(), 2);
    expect_put_end(again, {StatusCode::kUnavailable});  // its reader did not come back
  }
}

// A get over two streams loses both at once: the one retry is for both.
TEST(TcpTamper, StreamsThatBreakTogetherAreOneBreak) {
  RelayOptions two = options();
  two.streams = 2;
  const auto writer = make_relay_of(kSetup, with_time_to_return(two));
  const Pair pair = make_pair_of(kSetup, two);
  Sent sent = send(*writer, 1, {4 * kRangeBytes});
  {
    const Proxy both(writer->address(), Mischief::kCut, kFirstByte + 1000, 2);
    const auto reader = make_relay_of(kSetup, two);
    const Result<Parts> parts = get_through(*reader, sent, both);
    ASSERT_TRUE(parts.ok()) << parts.status().to_string();
    EXPECT_EQ(differs(sent.seed, sent.sizes, *parts), "");
    EXPECT_EQ(both.connections(), 3);
    expect_put_end(sent, {StatusCode::kOk});
  }
  Sent again = send(*pair.writer, 2, {4 * kRangeBytes});
  const Proxy always(pair.writer->address(), Mischief::kCut, kFirstByte + 1000);
  const Result<Parts> parts = get_through(*pair.reader, again, always);
  EXPECT_EQ(parts.status().code(), StatusCode::kUnavailable) << parts.status().to_string();
  EXPECT_EQ(always.connections(), 3);
  expect_put_end(again, {StatusCode::kUnavailable});
}

TEST(TcpTamper, AStalledConnectionEndsInTime) {
  RelayOptions impatient = options();
  impatient.silent_ms = 300;
  const Pair pair = make_pair_of(kSetup, options());
  const Sent sent = send(*pair.writer, 1, {kMib});
  const Proxy proxy(pair.writer->address(), Mischief::kStall, kFirstByte + 5);
  const auto reader = make_relay_of(kSetup, impatient);
  const Result<Parts> silent = get_through(*reader, sent, proxy);
  ASSERT_FALSE(silent.ok());
  EXPECT_EQ(silent.status().code(), StatusCode::kUnavailable) << silent.status().to_string();
  RelayOptions tolerant = options();
  tolerant.silent_ms = kPatienceMs;
  const auto other = make_relay_of(kSetup, tolerant);
  const Result<Parts> late = get_through(*other, sent, proxy, 200);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), StatusCode::kDeadline) << late.status().to_string();
}

// The frame in flight does not hold the end of its put up, however long its reader takes.
TEST(TcpTamper, ACancelledPutDoesNotWaitForAStalledReader) {
  RelayOptions tolerant = options();
  tolerant.silent_ms = 10 * kPatienceMs;
  const Pair pair = make_pair_of(kSetup, tolerant);
  Sent sent = send(*pair.writer, 1, {48 * kMib});
  const Proxy proxy(pair.writer->address(), Mischief::kStall, kFirstByte + 5);
  Received received = receive(*pair.reader, proxy.reroute(sent.ticket->descriptor), sent.sizes);
  ASSERT_TRUE(eventually([&] { return proxy.passed() >= kFirstByte + 5; }));
  pair.writer->cancel(sent.ticket->op);
  expect_put_end(sent, {StatusCode::kCancelled});
  expect_quiet(*pair.writer);
  EXPECT_FALSE(received.end.ready());
  pair.reader->cancel(*received.op);
  EXPECT_EQ(received.outcome().status().code(), StatusCode::kCancelled);
}

TEST(TcpTamper, ASlowReaderDoesNotSlowTheOthers) {
  const Pair pair = make_pair_of(kSetup, options());
  const auto slow_reader = make_relay_of(kSetup, options());
  const Sent large = send(*pair.writer, 9, {48 * kMib});
  const Proxy proxy(pair.writer->address(), Mischief::kSlow, 0);
  Received slow = receive(*slow_reader, proxy.reroute(large.ticket->descriptor), large.sizes);
  ASSERT_TRUE(eventually([&] { return proxy.passed() > kFirstByte; }));
  for (uint64_t i = 0; i < 20; ++i) expect_round_trip(*pair.writer, *pair.reader, i, {kMib});
  EXPECT_FALSE(slow.end.ready());  // 48 s at its pace
  EXPECT_LT(proxy.passed(), 48 * kMib);
  slow_reader->cancel(*slow.op);
  EXPECT_EQ(slow.outcome().status().code(), StatusCode::kCancelled);
}

// ---- raw sockets ----------------------------------------------------------------------------------------------------

class Raw {
 public:
  explicit Raw(const Relay& relay) {
    address_ = *parse_instance(relay.address());
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address_.socket.storage), address_.socket.size) == 0);
  }
  ~Raw() { close(fd_); }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;

  void send(std::span<const std::byte> bytes) { (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void send(const Header& header) { send(encode(header)); }
  Header hello(std::size_t address_bytes = 0) const {
    Header h;
    h.type = FrameType::kHello;
    h.length = static_cast<uint32_t>(kNonceBytes + address_bytes);
    h.op = 77;
    h.generation = address_.instance;
    return h;
  }
  void enter() {
    send(hello());
    send(std::vector<std::byte>(kNonceBytes));
    const Result<Header> welcome = receive_header();
    ASSERT_TRUE(welcome.ok());
    EXPECT_EQ(welcome->type, FrameType::kWelcome);
  }
  // The next header, without what follows it; kUnavailable: the relay hung up.
  Result<Header> receive_header() {
    HeaderBytes bytes{};
    for (std::size_t have = 0; have < bytes.size();) {
      const ssize_t got = recv(fd_, bytes.data() + have, bytes.size() - have, 0);
      if (got <= 0) return Status(StatusCode::kUnavailable, "hung up");
      have += static_cast<std::size_t>(got);
    }
    const Result<Header> header = decode(bytes);
    // The text of a REFUSE.
    if (header.ok() && header->type == FrameType::kRefuse && header->length > 0) {
      std::array<std::byte, kMaxReasonBytes> text;
      if (recv(fd_, text.data(), header->length, MSG_WAITALL) != header->length) {
        return Status(StatusCode::kUnavailable, "hung up");
      }
    }
    return header;
  }
  bool hung_up(int patience_ms = kPatienceMs) {
    pollfd wanted{fd_, POLLIN, 0};
    std::array<std::byte, 4096> scratch;
    while (poll(&wanted, 1, patience_ms) == 1) {
      if (recv(fd_, scratch.data(), scratch.size(), 0) <= 0) return true;
    }
    return false;
  }

 private:
  InstanceAddress address_;
  int fd_ = -1;
};

Header request_of(const std::string& descriptor, uint64_t offset, uint64_t size) {
  const Descriptor d = *decode_descriptor(descriptor, "tcp");
  Header h;
  h.type = FrameType::kRequest;
  h.length = kRequestBytes;
  h.op = d.op.value;
  h.generation = d.generation;
  h.ticket = 1;
  h.offset = offset;
  h.extra = size;
  return h;
}

void ask(Raw& raw, const std::string& descriptor, const Header& header, uint64_t total_more = 0) {
  const Descriptor d = *decode_descriptor(descriptor, "tcp");
  raw.send(header);
  raw.send(encode(RequestBody{d.bytes + total_more, d.sizes_hash}));
}

TEST(TcpHostile, WhatIsNoProtocolEndsTheConnection) {
  const Pair pair = make_pair_of(kSetup, options());
  const Sent sent = send(*pair.writer, 3, {kMib});
  const std::vector<std::byte> garbage(500, std::byte{0x5A});
  Header data;
  data.type = FrameType::kData;
  data.length = 8;
  std::vector<std::function<void(Raw&)>> attacks = {
      [&](Raw& raw) { raw.send(garbage); },
      [&](Raw& raw) { ask(raw, sent.ticket->descriptor, request_of(sent.ticket->descriptor, 0, 10)); },  // before HELLO
      [&](Raw& raw) { raw.send(raw.hello(5000)); },  // longer than may be
      [&](Raw& raw) {
        Header huge = raw.hello();
        huge.length = UINT32_MAX;
        raw.send(huge);
      },
      [&](Raw& raw) { raw.enter(), raw.send(garbage); },
      [&](Raw& raw) { raw.enter(), raw.send(data); },
      [&](Raw& raw) {
        raw.enter();  // and again
        raw.send(raw.hello());
        raw.send(std::vector<std::byte>(kNonceBytes));
      },
  };
  for (std::size_t i = 0; i < attacks.size(); ++i) {
    const uint64_t before = pair.writer->books().bad_frames;
    Raw raw(*pair.writer);
    attacks[i](raw);
    EXPECT_TRUE(raw.hung_up()) << "attack " << i;
    EXPECT_GT(pair.writer->books().bad_frames, before) << "attack " << i;
  }
  expect_received(*pair.reader, sent);
}

TEST(TcpHostile, RangesAndGenerationsAreCheckedAgainstThePut) {
  const Pair pair = make_pair_of(kSetup, options());
  const Sent sent = send(*pair.writer, 3, {kMib});
  const std::string& d = sent.ticket->descriptor;
  Raw raw(*pair.writer);
  raw.enter();
  const auto refused = [&](const Header& header, uint64_t total_more = 0) {
    ask(raw, d, header, total_more);
    const Result<Header> answer = raw.receive_header();
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->type, FrameType::kRefuse);
    EXPECT_EQ(answer->code, static_cast<uint32_t>(StatusCode::kInvalidArgument));
    EXPECT_EQ(answer->ticket, 1u);
  };
  refused(request_of(d, kMib, 1));
  refused(request_of(d, kMib - 1, 2));
  refused(request_of(d, UINT64_MAX, 2));
  refused(request_of(d, 1, UINT64_MAX));
  refused(request_of(d, 0, 0));
  refused(request_of(d, 0, kMib), 1);  // another total
  Header h = request_of(d, 0, 1);
  h.generation ^= 1;
  refused(h);
  h = request_of(d, 0, 1);
  h.op += 1;
  refused(h);
  h = request_of(d, 0, 1);
  h.op = 0;
  refused(h);
  ask(raw, d, request_of(d, 0, kMib));  // and the right one
  const Result<Header> data = raw.receive_header();
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(data->type, FrameType::kData);
  EXPECT_EQ(data->length, kFrameBytes);
  expect_received(*pair.reader, sent);
}

TEST(TcpHostile, AnotherVersionIsRefusedWithItsReason) {
  const auto relay = make_relay_of(kSetup, options());
  for (const uint16_t version : {0, 1, 0xFFFF}) {
    Raw raw(*relay);
    Header h = raw.hello();
    h.version = version;
    raw.send(h);
    const Result<Header> answer = raw.receive_header();
    ASSERT_TRUE(answer.ok()) << "version " << version;
    EXPECT_EQ(answer->type, FrameType::kRefuse);
    EXPECT_EQ(answer->code, static_cast<uint32_t>(StatusCode::kUnsupported));
    EXPECT_EQ(answer->extra, kVersion);
    EXPECT_TRUE(raw.hung_up());
  }
}

TEST(TcpHostile, SlowSpeakersAreHungUpOn) {
  RelayOptions impatient = options();
  impatient.silent_ms = impatient.connect_timeout_ms = 1'000;
  const auto relay = make_relay_of(kSetup, impatient);
  Raw sends_nothing(*relay);
  Raw sends_half(*relay);
  sends_half.send(std::span<const std::byte>(encode(sends_half.hello())).first(40));
  Raw drips(*relay);
  drips.enter();
  Header ping;
  for (const std::byte b : encode(ping)) {  // 64 bytes, one each 50 ms: over three seconds for one frame
    drips.send({&b, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(drips.hung_up());
  EXPECT_TRUE(sends_nothing.hung_up());
  EXPECT_TRUE(sends_half.hung_up());
}

TEST(TcpHostile, AThousandIdleConnectionsStopNoOtherAndLeaveNothing) {
  RelayOptions o = options();
  o.connect_timeout_ms = 20'000;  // for the idle ones, and for the reader among them
  const std::size_t before = open_fds();
  {
    const Pair pair = make_pair_of(kSetup, o);
    const std::size_t quiet = open_fds();
    std::vector<std::unique_ptr<Raw>> idle;
    for (int i = 0; i < 1000; ++i) idle.push_back(std::make_unique<Raw>(*pair.writer));
    expect_round_trip(*pair.writer, *pair.reader, 1, {kMib});
    EXPECT_LE(open_fds(), quiet + idle.size() + kMaxInbound + 8);
    for (const auto& raw : idle) ASSERT_TRUE(raw->hung_up());
    idle.clear();
    expect_round_trip(*pair.writer, *pair.reader, 2, {kMib});
    EXPECT_TRUE(eventually([&] { return open_fds() <= quiet + 4; })) << open_fds() << " descriptors; wanted " << quiet;
  }
  EXPECT_TRUE(eventually([&] { return open_fds() <= before; })) << open_fds() << " descriptors; wanted " << before;
}

// ---- options and secrets --------------------------------------------------------------------------------------------

StatusCode code_of(const RelayOptions& o) { return make_tcp_relay(o).status().code(); }

TEST(TcpSecret, NothingListensInPublicWithoutOne) {
  RelayOptions o = options();
  for (const char* listen : {"10.0.0.1:0", "[2001:db8::1]:0", "0.0.0.0:0", "[::]:0", "localhost:0", "127.0.0.1"}) {
    o.listen = listen;
    EXPECT_EQ(code_of(o), StatusCode::kInvalidArgument) << listen;
  }
  o.listen = "127.0.0.1:0";
  o.secret = std::string(kMinSecretBytes - 1, 's');
  EXPECT_EQ(code_of(o), StatusCode::kInvalidArgument);
  o.secret.clear();
  o.streams = kMaxStreams + 1;
  EXPECT_EQ(code_of(o), StatusCode::kInvalidArgument);
  // A reader without a secret goes nowhere beyond this host either.
  const Pair pair = make_pair_of(kSetup, options());
  const Sent sent = send(*pair.writer, 1, {10});
  Descriptor d = *decode_descriptor(sent.ticket->descriptor, "tcp");
  d.tail = "192.0.2.1:9";
  expect_refused(receive(*pair.reader, encode_descriptor(d), sent.sizes), {StatusCode::kInvalidArgument}, "public");
}

TEST(TcpSecret, ReaderAndWriterProveIt) {
  RelayOptions with = options();
  with.secret = std::string(kMinSecretBytes, 'a');
  RelayOptions other = with;
  other.secret.back() = 'b';
  const auto writer = make_relay_of(kSetup, with);
  const auto open_writer = make_relay_of(kSetup, options());
  expect_round_trip(*writer, *make_relay_of(kSetup, with), 1, {kMib, 5});
  const Sent guarded = send(*writer, 2, {1000});
  const Sent open = send(*open_writer, 3, {1000});
  const std::vector<StatusCode> unavailable = {StatusCode::kUnavailable};
  expect_refused(receive(*make_relay_of(kSetup, other), guarded), unavailable, "another secret");
  expect_refused(receive(*make_relay_of(kSetup, options()), guarded), unavailable, "no secret");
  expect_refused(receive(*make_relay_of(kSetup, with), open), unavailable, "a writer without the secret");
  EXPECT_GE(writer->books().bad_frames, 2u);
  // Without a proof nothing is answered.
  Raw raw(*writer);
  Header hello = raw.hello();
  hello.flags = kFlagChecksum;
  raw.send(hello);
  raw.send(std::vector<std::byte>(kNonceBytes));
  EXPECT_EQ(raw.receive_header()->type, FrameType::kChallenge);
  raw.send(std::vector<std::byte>(kNonceBytes));  // no frame at all
  EXPECT_TRUE(raw.hung_up());
}

TEST(TcpOptions, PortsAndIpv6) {
  RelayOptions o = options();
  o.listen = "[::1]:0";
  const Result<std::unique_ptr<Relay>> six = make_tcp_relay(o);
  if (!six.ok()) GTEST_SKIP() << "this machine has no IPv6: " << six.status().to_string();
  expect_round_trip(**six, *make_relay_of(kSetup, o), 1, {kMib});
  expect_round_trip(**six, *make_relay_of(kSetup, options()), 2, {kMib});  // read over IPv6 by one that listens on 4
  o.listen = parse_instance((*six)->address())->socket.to_string();
  EXPECT_EQ(code_of(o), StatusCode::kConflict);
}

TEST(TcpOptions, ConnectionsAreUsedAgainAndAnIdleOneThatBrokeIsMadeAnew) {
  const Pair pair = make_pair_of(kSetup, options());
  Sent first = send(*pair.writer, 1, {1000});
  const Proxy proxy(pair.writer->address(), Mischief::kCut, kFirstByte + 1000 + kTrailerBytes, 1);  // right behind it
  EXPECT_TRUE(get_through(*pair.reader, first, proxy).ok());
  for (uint64_t i = 2; i < 6; ++i) {
    const Sent sent = send(*pair.writer, i, {1000});
    const Result<Parts> parts = get_through(*pair.reader, sent, proxy);
    ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  }
  EXPECT_EQ(proxy.connections(), 2);
}

}  // namespace
}  // namespace millrace::tcp

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
