// What stands at the other end of the socket and does not behave: callers that send what they must not, writers whose
// answers or memory are bad, processes of another user. Whatever they do, the relay counts it, serves others, and keeps
// no descriptor of theirs.
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "relay/shm/channel.h"
#include "relay/shm/poller.h"
#include "relay/shm/shm_relay.h"
#include "relay/shm/socket.h"
#include "relay/testing/fixture.h"

namespace millrace::shm {
namespace {

using relay_testing::eventually;
using relay_testing::expect_put_end;
using relay_testing::Parts;
using relay_testing::Sent;

constexpr StatusCode kUnavailable = StatusCode::kUnavailable;
constexpr int kLongMs = 20'000;  // for those that speak: also where they get no processor for a while
constexpr int kShortMs = 300;    // for those that are silent

relay_testing::ConformanceSetup setup() {
  return {.name = "shm", .make = [](const RelayOptions& options) { return make_shm_relay(options); }};
}

std::size_t open_fds() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class Peers : public testing::Test {
 protected:
  void SetUp() override {
    fds_before_ = open_fds();
    options_ = relay_testing::small_options(setup());
    options_.silent_ms = options_.connect_timeout_ms = kLongMs;
    relay_ = relay_testing::make_relay_of(setup(), options_);
    ASSERT_TRUE(relay_);
    id_ = *parse_address(relay_->address());
    fds_with_relay_ = open_fds();
  }
  void TearDown() override {
    EXPECT_TRUE(eventually([&] { return open_fds() <= fds_with_relay_; })) << open_fds() << " descriptors are open";
    auto other = relay_testing::make_relay_of(setup(), options_);
    relay_testing::expect_round_trip(*relay_, *other, 1, {5000});
    other.reset();
    relay_.reset();
    EXPECT_EQ(open_fds(), fds_before_);
  }
  std::unique_ptr<Relay> make_impatient() const {
    RelayOptions options = options_;
    options.silent_ms = options.connect_timeout_ms = kShortMs;
    return relay_testing::make_relay_of(setup(), options);
  }
  void expect_bad_frames(uint64_t count) {
    EXPECT_TRUE(eventually([&] { return relay_->books().bad_frames >= count; })) << relay_->books().bad_frames;
    EXPECT_EQ(relay_->books().bad_frames, count);
  }

  Hello hello_to(const InstanceId& writer) const {
    Hello hello;
    std::copy(writer.random.begin(), writer.random.end(), hello.writer);
    hello.reader[0] = 1;
    return hello;
  }
  // The answer to what was sent, within the patience; of 0 bytes where the connection was ended.
  static std::string answer(const Fd& socket) {
    std::string bytes(256, '\0');
    Packet packet;
    eventually([&] {
      packet = receive(socket, std::as_writable_bytes(std::span(bytes)), true);
      return packet.kind != Packet::Kind::kNothing;
    });
    bytes.resize(packet.kind == Packet::Kind::kMessage ? packet.bytes : 0);
    return bytes;
  }
  static Refusal refusal_in(const std::string& bytes) {
    Refused refused;
    if (bytes.size() != sizeof refused) return Refusal{};
    std::memcpy(&refused, bytes.data(), sizeof refused);
    return refused.magic == kMagic && refused.type == MessageType::kRefusal ? refused.reason : Refusal{};
  }
  // A reader made by hand, welcomed.
  std::shared_ptr<Channel> join() {
    auto socket = connect_to(id_);
    EXPECT_TRUE(socket.ok()) << socket.status().to_string();
    EXPECT_TRUE(send(*socket, bytes_of(hello_to(id_)), {}));
    Welcome welcome;
    Packet packet;
    eventually([&] {
      packet = receive(*socket, std::as_writable_bytes(std::span(&welcome, 1)), true);
      return packet.kind != Packet::Kind::kNothing;
    });
    auto channel = Channel::make(std::move(*socket), welcome, std::move(packet.fds));
    EXPECT_TRUE(channel.ok()) << channel.status().to_string();
    return channel.ok() ? *channel : nullptr;
  }

  std::size_t fds_before_ = 0, fds_with_relay_ = 0;
  RelayOptions options_;
  std::unique_ptr<Relay> relay_;
  InstanceId id_;
};

TEST_F(Peers, CallersThatAreNotUnderstood) {
  Hello version = hello_to(id_), type = hello_to(id_), magic = hello_to(id_);
  version.version = 2;
  type.type = MessageType::kWelcome;
  magic.magic ^= 1;
  const auto text = [](const auto& message) {
    return std::string(reinterpret_cast<const char*>(&message), sizeof message);
  };
  uint64_t bad = 0;
  for (const std::string& message :
       {text(version), text(type), text(magic), text(hello_to(id_)).substr(1), text(hello_to(id_)) + "x",
        std::string(60'000, '\xFF'), std::string("GET / \r\n"), std::string()}) {
    auto socket = connect_to(id_);
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(send(*socket, std::as_bytes(std::span(message)), {}));
    EXPECT_EQ(refusal_in(answer(*socket)), Refusal::kNotUnderstood) << message.size() << " bytes";
    EXPECT_EQ(answer(*socket), "") << "the connection ends";
    expect_bad_frames(++bad);
  }
}

TEST_F(Peers, ACallerForAnotherInstance) {
  auto socket = connect_to(id_);
  ASSERT_TRUE(socket.ok());
  ASSERT_TRUE(send(*socket, bytes_of(hello_to(make_instance_id())), {}));
  EXPECT_EQ(refusal_in(answer(*socket)), Refusal::kOtherInstance);
  expect_bad_frames(1);
}

TEST_F(Peers, DescriptorsThatWereNotRequested) {
  for (int i = 0; i < 20; ++i) {
    auto socket = connect_to(id_);
    ASSERT_TRUE(socket.ok());
    const int sent_along[] = {0, 0, 0, 0};
    ASSERT_TRUE(send(*socket, bytes_of(hello_to(id_)), sent_along));
    EXPECT_EQ(answer(*socket).size(), sizeof(Welcome));
  }
}

TEST_F(Peers, ASilentCallerIsLeft) {
  const auto relay = make_impatient();
  ASSERT_TRUE(relay);
  auto socket = connect_to(*parse_address(relay->address()));
  ASSERT_TRUE(socket.ok());
  EXPECT_EQ(answer(*socket), "");
  EXPECT_TRUE(eventually([&] { return relay->books().bad_frames >= 1; }));
  EXPECT_EQ(relay->books().bad_frames, 1u);
}

TEST_F(Peers, ManyComeAndGo) {
  for (int i = 0; i < 300; ++i) {
    auto socket = connect_to(id_);
    if (!socket.ok()) {
      ASSERT_EQ(socket.status().code(), StatusCode::kResourceExhausted);
      std::this_thread::yield();
      continue;
    }
    if (i % 3) (void)send(*socket, bytes_of(hello_to(id_)), {});
  }
}

// As long as its connection is open, and be it only half, a reader may hold bytes: what it sends does not change that.
TEST_F(Peers, ATalkerKeepsWhatItHolds) {
  auto channel = join();
  ASSERT_TRUE(channel);
  Sent sent = relay_testing::send(*relay_, 3, {1 << 20});
  ASSERT_TRUE(sent.ticket.ok());
  const auto descriptor = decode_descriptor(sent.ticket->descriptor, "shm");
  ASSERT_TRUE(descriptor.ok());
  const auto held = channel->claim(*descriptor, sent.sizes, 1);
  ASSERT_TRUE(held.ok()) << held.status().to_string();
  ASSERT_EQ(::send(channel->fd(), "boo", 3, 0), 3);
  expect_bad_frames(1);
  ASSERT_EQ(::send(channel->fd(), "", 0, 0), 0);
  ASSERT_EQ(::shutdown(channel->fd(), SHUT_WR), 0);
  relay_->cancel(sent.ticket->op);
  expect_put_end(sent, {StatusCode::kCancelled});
  for (uint64_t i = 0; i < 20; ++i) {
    Sent other = relay_testing::send(*relay_, 50 + i, {1 << 20});
    ASSERT_TRUE(other.ticket.ok());
    relay_->cancel(other.ticket->op);
    expect_put_end(other, {StatusCode::kCancelled});
  }
  EXPECT_EQ(relay_testing::differs(3, sent.sizes, channel->parts(*held, sent.sizes)), "");
  EXPECT_GT(relay_->books().held_bytes, 0u);
  channel.reset();
  relay_testing::expect_quiet(*relay_);
}

TEST_F(Peers, AReaderThatHangsUpWithAHoldIsTakenForDead) {
  auto channel = join();
  Sent sent = relay_testing::send(*relay_, 3, {5000});
  const auto held = channel->claim(*decode_descriptor(sent.ticket->descriptor, "shm"), sent.sizes, 1);
  ASSERT_TRUE(held.ok());
  channel.reset();
  expect_put_end(sent, {kUnavailable});
}

// A writer made by hand, that answers the first caller.
class FakeWriter {
 public:
  explicit FakeWriter(std::function<void(const Fd& socket)> answer) : listener_(std::move(*listen_at(id_))) {
    thread_ = std::thread([this, answer = std::move(answer)] {
      while (!stop_) {
        int code = 0;
        const Fd socket = accept_one(listener_, code);
        if (!socket.valid()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          continue;
        }
        Hello hello;
        eventually([&] {
          return receive(socket, std::as_writable_bytes(std::span(&hello, 1)), false).kind != Packet::Kind::kNothing;
        });
        answer(socket);
        while (!stop_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~FakeWriter() {
    stop_ = true;
    thread_.join();
  }
  std::string descriptor() const {
    Descriptor d;
    d.backend = "shm";
    d.instance = id_;
    d.op = RelayOp{1};
    d.generation = 1;
    describe_sizes(std::vector<std::size_t>{100}, d);
    d.tail = encode_tail({0, 0});
    return encode_descriptor(d);
  }

 private:
  const InstanceId id_ = make_instance_id();
  const Fd listener_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class Writers : public Peers {
 protected:
  void expect_refused(std::function<void(const Fd&)> answer, const char* what, uint64_t bad_frames = 1) {
    const uint64_t before = relay_->books().bad_frames;
    const FakeWriter writer(std::move(answer));
    relay_testing::expect_refused(relay_testing::receive(*relay_, writer.descriptor(), {100}), {kUnavailable}, what);
    EXPECT_EQ(relay_->books().bad_frames - before, bad_frames) << what;
    EXPECT_EQ(relay_->books().gets, 0);
  }
  struct Memory {
    Fd pool, state, holds;
  };
  static Memory good_memory() {
    Memory memory{std::move(*make_memfd("fake", 8 * kPageBytes)), std::move(*make_memfd("fake", state_bytes(4))),
                  std::move(*make_memfd("fake", holds_bytes(4)))};
    auto mapped = Mapping::make(memory.state, state_bytes(4), true);
    auto* header = reinterpret_cast<StateHeader*>(mapped->data());
    header->magic = kMagic;
    header->version = kVersion;
    header->slots = 4;
    return memory;
  }
  static Welcome welcome() {
    Welcome welcome;
    welcome.slots = 4;
    welcome.pool_bytes = 8 * kPageBytes;
    return welcome;
  }
  static void share(const Fd& socket, const Welcome& welcome, const Memory& memory, int fds = 4) {
    const Fd bell = std::move(*Poller::make_bell());
    const int all[] = {memory.pool.get(), memory.state.get(), memory.holds.get(), bell.get()};
    (void)send(socket, bytes_of(welcome), std::span(all).first(static_cast<std::size_t>(fds)));
  }
};

TEST_F(Writers, AnswersThatAreNone) {
  expect_refused([](const Fd& s) { (void)send(s, std::as_bytes(std::span("garbage, of some length", 24)), {}); },
                 "garbage");
  expect_refused([](const Fd& s) { (void)send(s, std::as_bytes(std::span("x", 1)), {}); }, "one byte");
  expect_refused([](const Fd& s) { (void)::shutdown(s.get(), SHUT_RDWR); }, "hung up", 0);
  expect_refused([](const Fd& s) { (void)send(s, bytes_of(Refused{}), {}); }, "refused", 0);
}

TEST_F(Writers, ASilentOneIsLeft) {
  const auto relay = make_impatient();
  ASSERT_TRUE(relay);
  const FakeWriter writer([](const Fd&) {});
  relay_testing::expect_refused(relay_testing::receive(*relay, writer.descriptor(), {100}), {kUnavailable}, "silence");
  EXPECT_EQ(relay->books().bad_frames, 0u);
  EXPECT_EQ(relay->books().gets, 0);
}

TEST_F(Writers, MemoryThatIsNot) {
  expect_refused([](const Fd& s) { share(s, welcome(), good_memory(), 0); }, "no descriptors");
  expect_refused([](const Fd& s) { share(s, welcome(), good_memory(), 3); }, "too few descriptors");
  expect_refused(
      [](const Fd& s) {
        Welcome more = welcome();
        more.pool_bytes *= 2;  // touching the rest would be SIGBUS
        share(s, more, good_memory());
      },
      "shorter than its length field");
  expect_refused(
      [](const Fd& s) {
        Memory memory = good_memory();
        memory.pool = Fd(::memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING));  // could be cut at any time
        (void)!::ftruncate(memory.pool.get(), 8 * kPageBytes);
        share(s, welcome(), memory);
      },
      "without seals");
  expect_refused(
      [](const Fd& s) {
        Memory memory = good_memory();
        memory.state = std::move(*make_memfd("fake", state_bytes(4)));
        share(s, welcome(), memory);
      },
      "a state table of zeros");
  for (const uint32_t slots : {0u, 5u, kMaxSlots + 1, UINT32_MAX}) {
    expect_refused(
        [slots](const Fd& s) {
          Welcome other = welcome();
          other.slots = slots;
          share(s, other, good_memory());
        },
        "another number of slots");
  }
}

TEST_F(Writers, ASlotThatPointsOutside) {
  const FakeWriter writer([](const Fd& s) {
    Memory memory = good_memory();
    auto mapped = Mapping::make(memory.state, state_bytes(4), true);
    auto* record = reinterpret_cast<SlotRecord*>(mapped->data() + sizeof(StateHeader));
    Descriptor d;
    describe_sizes(std::vector<std::size_t>{100}, d);
    record->op = 1;
    record->bytes = 100;
    record->sizes_hash = d.sizes_hash;
    record->parts = 1;
    record->readers = 1;
    record->offset = 8 * kPageBytes - 64;
    record->extent_bytes = kPageBytes;
    record->word.store(slot_word(1, Offer::kOffered));
    share(s, welcome(), memory);
  });
  relay_testing::expect_refused(relay_testing::receive(*relay_, writer.descriptor(), {100}),
                                {StatusCode::kInvalidArgument}, "beyond the pool");
}

TEST_F(Writers, TalkAfterTheWelcomeEndsTheLink) {
  const FakeWriter writer([](const Fd& s) {
    share(s, welcome(), good_memory());
    (void)!::send(s.get(), "boo", 3, 0);
  });
  (void)relay_testing::receive(*relay_, writer.descriptor(), {100}).outcome();
  expect_bad_frames(1);
}

// Needs the right to become another user.
TEST(Users, AnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
  int address[2], answer[2];
  ASSERT_EQ(::pipe(address), 0);
  ASSERT_EQ(::pipe(answer), 0);
  const pid_t child = ::fork();  // before the relay's thread
  if (child == 0) {
    InstanceId id;
    if (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(1);
    if (::read(address[0], id.random.data(), id.random.size()) != 16) ::_exit(1);
    const char refused = connect_to(id).status().code() == StatusCode::kPermissionDenied ? 'y' : 'n';
    (void)!::write(answer[1], &refused, 1);
    ::_exit(0);
  }
  auto relay = relay_testing::make_relay_of(setup(), {});
  const InstanceId id = *parse_address(relay->address());
  ASSERT_EQ(::write(address[1], id.random.data(), id.random.size()), 16);
  char refused = '?';
  ASSERT_EQ(::read(answer[0], &refused, 1), 1);
  EXPECT_EQ(refused, 'y') << "the reader checks the writer";
  EXPECT_TRUE(eventually([&] { return relay->books().bad_frames == 1; })) << "and the writer checks the reader";
  ::waitpid(child, nullptr, 0);
  for (const int fd : {address[0], address[1], answer[0], answer[1]}) ::close(fd);
}

}  // namespace
}  // namespace millrace::shm
