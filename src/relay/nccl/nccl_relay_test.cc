// The NCCL relay over the double of testing/fake_nccl.cc: the conformance suite, device memory, why it is absent, and
// what it does when the device hangs. No GPU is used, unless it is asked for by hand:
//
//   MILLRACE_TEST_GPU=1 NCCL_SOCKET_IFNAME=lo relay_nccl_relay_test --gtest_filter='RelayConformance_nccl_*'
//
// runs the cases of two processes over the real libraries, with parts in host memory and in the GPU's. One GPU is
// enough: NCCL refuses two ranks of one host on it, so each process reports a host of its own.
#include "relay/nccl/nccl_relay.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nccl/communicator.h"
#include "nccl/testing/setting.h"
#include "relay/session/frame.h"
#include "relay/tcp/address.h"
#include "relay/testing/conformance.h"
#include "relay/testing/device_relay.h"
#include "relay/testing/fixture.h"

namespace millrace {
namespace {

using namespace relay_testing;

using nccl::testing::Setting;

const nccl::Libraries kFake = {{MILLRACE_FAKE_NCCL}, {MILLRACE_FAKE_NCCL}};

Result<std::unique_ptr<Relay>> make_fake(const RelayOptions& options) { return make_nccl_relay_of(options, kFake); }

const ConformanceSetup& setup() {
  static const ConformanceSetup instance = {
      .name = "nccl", .make = make_fake, .options = {}, .unavailable = "", .left_over = nullptr};
  return instance;
}

Result<std::unique_ptr<Relay>> make_on_gpu(const RelayOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Relay> relay, make_nccl_relay(options));
  ASSIGN_OR_RETURN(const nccl::Api* const api, nccl::load_nccl({}));
  return behind_device_memory(std::move(relay), *api);
}

int threads_of_this_process() {
  int count = 0;
  DIR* dir = ::opendir("/proc/self/task");
  while (dir != nullptr && ::readdir(dir) != nullptr) ++count;
  if (dir != nullptr) ::closedir(dir);
  return count;
}

// The part in "device" memory.
SharedBytes to_device(const nccl::Api& api, const SharedBytes& part) {
  std::shared_ptr<void> block = *nccl::make_device_memory(api, std::max<std::size_t>(part.size_bytes(), 1));
  if (!part.empty()) std::memcpy(block.get(), part.data(), part.size_bytes());
  const auto* data = static_cast<const std::byte*>(block.get());
  return {std::move(block), data, part.size_bytes(), Device::kCuda};
}

TEST(NcclRelay, DeviceAndHostPartsArriveWhereTheyLay) {
  Pair pair = make_pair_of(setup(), small_options(setup()));
  ASSERT_TRUE(pair.writer && pair.reader);
  EXPECT_TRUE(pair.writer->capabilities().cuda_memory);
  const nccl::Api& api = **nccl::load_nccl(kFake);
  const Sizes sizes = {10, 20 * kMib + 3, 0, 300 * kKib, 4097, 1, 9 * kMib};
  for (int which = 0; which < 4; ++which) {
    Parts parts = make_parts(7, sizes);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (which == 0 || (which == 1 && i % 2 == 0) || (which == 2 && i % 2 == 1)) parts[i] = to_device(api, parts[i]);
    }
    AwaitPut put_end;
    const auto ticket =
        pair.writer->put({.parts = parts, .request = {}, .destination = "", .done = put_end.callback()});
    ASSERT_TRUE(ticket.ok()) << ticket.status().to_string();
    Received received = receive(*pair.reader, ticket->descriptor, sizes);
    const Result<Parts> got = received.outcome();
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(differs(7, sizes, *got), "");
    for (std::size_t i = 0; i < parts.size(); ++i) EXPECT_EQ((*got)[i].device(), parts[i].device()) << i;
    ASSERT_TRUE(put_end.wait().has_value());
  }
  expect_quiet(*pair.reader);
}

TEST(NcclRelay, HostMemoryIsNotTakenForTheDevices) {
  Pair pair = make_pair_of(setup(), small_options(setup()));
  const SharedBytes host = make_part(1, 0, 100);
  AwaitPut end;
  const auto ticket = pair.writer->put({.parts = {SharedBytes(host.owner(), host.data(), 100, Device::kCuda)},
                                        .request = {},
                                        .destination = "",
                                        .done = end.callback()});
  EXPECT_EQ(ticket.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(end.count(), 0);
}

TEST(NcclRelay, ReportsWhyItIsAbsent) {
  const auto reason = [](const nccl::Libraries& libraries) {
    const auto relay = make_nccl_relay_of({}, libraries);
    EXPECT_EQ(relay.status().code(), StatusCode::kUnavailable);
    return relay.status().message();
  };
  EXPECT_NE(reason({{"libno-cuda.so"}, {MILLRACE_FAKE_NCCL}}).find("libno-cuda.so"), std::string::npos);
  EXPECT_NE(reason({{MILLRACE_FAKE_NCCL}, {"libno-nccl.so"}}).find("libno-nccl.so"), std::string::npos);
  {
    // Other lists than the other tests', because what was loaded once is kept.
    const Setting none("FAKE_NCCL_DEVICES", "0");
    EXPECT_NE(reason({{MILLRACE_FAKE_NCCL}, {MILLRACE_FAKE_NCCL, "1"}}).find("no CUDA device"), std::string::npos);
  }
  const Setting old("FAKE_NCCL_VERSION", "21304");
  EXPECT_NE(reason({{MILLRACE_FAKE_NCCL}, {MILLRACE_FAKE_NCCL, "2"}}).find("21304"), std::string::npos);
}

TEST(NcclRelay, BeyondLoopbackItNeedsASecret) {
  RelayOptions options = small_options(setup());
  options.listen = "192.0.2.1:0";
  EXPECT_EQ(make_fake(options).status().code(), StatusCode::kInvalidArgument);
  options.listen = "0.0.0.0:0";
  options.secret = std::string(32, 's');
  EXPECT_EQ(make_fake(options).status().code(), StatusCode::kInvalidArgument);
}

// A peer on the writer's port that is no relay is hung up on, and harms no other peer.
TEST(NcclRelay, UnregisteredPeersOnThePortAreHungUpOn) {
  RelayOptions options = small_options(setup());
  options.connect_timeout_ms = kPatienceMs;  // so that only the silent peer is one that is late
  Pair pair = make_pair_of(setup(), options);
  options.connect_timeout_ms = 300;
  const std::unique_ptr<Relay> impatient = make_relay_of(setup(), options);
  ASSERT_TRUE(pair.writer && pair.reader && impatient);
  Result<tcp::InstanceAddress> address = tcp::parse_instance(pair.writer->address());
  const Result<tcp::InstanceAddress> impatient_address = tcp::parse_instance(impatient->address());
  ASSERT_TRUE(address.ok() && impatient_address.ok());
  const auto frame = [](const session::Header& header) {
    const session::HeaderBytes bytes = session::encode(header);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + std::string(header.length, 'n');
  };
  const std::string wrong = frame({.type = session::FrameType::kRequest, .length = session::kRequestBytes});
  const std::string other =
      frame({.type = session::FrameType::kHello, .length = 64, .generation = address->instance + 1});
  for (const std::string& bytes : {std::string(100, 'x'), wrong, other, std::string()}) {
    const Result<int> fd = tcp::start_connect(bytes.empty() ? impatient_address->socket : address->socket);
    ASSERT_TRUE(fd.ok());
    pollfd wanted{*fd, POLLOUT, 0};
    ASSERT_EQ(::poll(&wanted, 1, kPatienceMs), 1);
    ASSERT_EQ(::send(*fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    // A REFUSE, perhaps, and then the end.
    EXPECT_TRUE(eventually([&] {
      char answer[4096];
      const ssize_t got = ::recv(*fd, answer, sizeof(answer), MSG_DONTWAIT);
      return got == 0 || (got < 0 && errno != EAGAIN);
    }));
    ::close(*fd);
  }
  EXPECT_TRUE(eventually([&] { return pair.writer->books().bad_frames == 2; })) << pair.writer->books().bad_frames;
  EXPECT_EQ(impatient->books().bad_frames, 0u);
  expect_round_trip(*pair.writer, *pair.reader, 1, {1000});
}

TEST(NcclRelay, OnlyEqualSecretsMeet) {
  RelayOptions options = small_options(setup());
  options.secret = std::string(32, 's');
  Pair same = make_pair_of(setup(), options);
  expect_round_trip(*same.writer, *same.reader, 1, {1000});
  RelayOptions other = options;
  for (const std::string& secret : {std::string(32, 't'), std::string()}) {
    other.secret = secret;
    std::unique_ptr<Relay> unregistered = make_relay_of(setup(), other);
    Sent sent = send(*same.writer, 2, {1000});
    expect_refused(receive(*unregistered, sent), {StatusCode::kUnavailable}, "an unregistered peer");
    EXPECT_EQ(sent.end.count(), 0);
    expect_round_trip(*same.writer, *same.reader, 3, {1000});
  }
}

// Both devices hang in the transfer: deadlines hold, nothing waits for them, and no thread stays behind.
TEST(NcclRelay, AHangingDeviceEndsWithTheDeadline) {
  const int before = threads_of_this_process();
  {
    RelayOptions options = small_options(setup());
    Pair pair = make_pair_of(setup(), options);
    expect_round_trip(*pair.writer, *pair.reader, 1, {1000});
    const Setting hang("FAKE_NCCL_HANG", "1");
    Sent sent = send(*pair.writer, 2, {kMib});
    expect_refused(receive(*pair.reader, sent, 300), {StatusCode::kDeadline}, "a get that hangs");
    // Closed while the writer's device still hangs.
    pair.writer->close();
    expect_put_end(sent, {StatusCode::kCancelled, StatusCode::kUnavailable});
    pair.reader->close();
  }
  EXPECT_TRUE(eventually([&] { return threads_of_this_process() == before; }));
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  std::vector<relay_testing::ConformanceSetup> setups = {setup()};
  if (std::getenv("MILLRACE_TEST_GPU") != nullptr) {
    setups = {{.name = "nccl_host", .make = make_nccl_relay}, {.name = "nccl_device", .make = make_on_gpu}};
    for (auto& each : setups) each.only_between_processes = true;
    ::setenv("NCCL_HOSTID", std::to_string(::getpid()).c_str(), 1);
  }
  return relay_testing::conformance_main(argc, argv, setups);
}
