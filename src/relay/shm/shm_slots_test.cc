// Slots and holds without sockets: a Writer and Channels over the same memory. What happens when either side stops at
// any point of taking and releasing, when a reader lies, and when both sides meet on one slot.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "relay/shm/channel.h"
#include "relay/shm/writer.h"
#include "relay/testing/await.h"

namespace millrace::shm {
namespace {

using relay_testing::AwaitPut;
using Sizes = std::vector<std::size_t>;

// A writer, and the readers that connect to it.
class Slots : public testing::Test {
 protected:
  struct Put {
    RelayOp op;
    Descriptor descriptor;
    Sizes sizes;
    AwaitPut end;
  };
  struct Reader {
    uint64_t id;
    std::shared_ptr<Channel> channel;
    Mapping holds;  // as the reader writes it
    std::atomic<uint64_t>& word(uint32_t slot) { return reinterpret_cast<std::atomic<uint64_t>*>(holds.data())[slot]; }
  };

  void SetUp() override {
    options_ = {.pool_bytes = 1 << 20, .credits = 2, .lease_ms = 600'000};
    start();
  }
  void start() {
    table_ = std::make_unique<OpTable>(
        options_, [this](RelayOp op, bool is_put, const Status&) { return !is_put || writer_->ended(op); });
    auto writer = Writer::make(options_, self_, *table_);
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    writer_ = std::move(*writer);
  }
  void TearDown() override { table_->close(); }

  // A put of bytes that all are `value`; its op is 0 where it was refused.
  Put put(int value, const Sizes& sizes = {1000}, int readers = 1, uint64_t destination = 0) {
    Put put;
    put.sizes = sizes;
    PutRequest request;
    for (const std::size_t size : sizes) {
      Buffer buffer(size);
      std::memset(buffer.data(), value, size);
      request.parts.emplace_back(std::move(buffer));
    }
    request.readers = readers;
    request.done = put.end.callback();
    const std::size_t bytes = total_bytes(request);
    auto op = table_->open_put(std::move(request), bytes, monotonic_ms());
    if (!op.ok()) return put;
    auto descriptor = writer_->offer(*op, *table_->put(*op), destination);
    if (!descriptor.ok()) {
      table_->forget(*op);
      return put;
    }
    put.op = *op;
    put.descriptor = *descriptor;
    table_->unpin(*op);
    return put;
  }

  Reader connect(uint64_t self = 1) {
    Reader reader{next_reader_++, nullptr, {}};
    auto share = writer_->add_reader(reader.id, self);
    EXPECT_TRUE(share.ok());
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ::close(pair[1]);
    reader.holds = std::move(*Mapping::make(share->holds, holds_bytes(2), true));
    std::vector<Fd> fds;
    fds.emplace_back(::dup(share->pool));
    fds.emplace_back(::dup(share->state));
    fds.push_back(std::move(share->holds));
    fds.emplace_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    auto channel = Channel::make(Fd(pair[0]), share->welcome, std::move(fds));
    EXPECT_TRUE(channel.ok()) << channel.status().to_string();
    reader.channel = std::move(*channel);
    return reader;
  }
  static Result<Channel::Claim> claim(Reader& reader, const Put& put, uint64_t self = 1) {
    return reader.channel->claim(put.descriptor, put.sizes, self);
  }
  static uint32_t slot_of(const Put& put) { return decode_tail(put.descriptor.tail)->slot; }
  static uint32_t generation_of(const Put& put) { return static_cast<uint32_t>(put.descriptor.generation); }
  // "" where all bytes are `value`.
  static std::string wrong(const Reader& reader, const Channel::Claim& claim, const Sizes& sizes, int value) {
    for (const SharedBytes& part : reader.channel->parts(claim, sizes)) {
      for (const std::byte byte : part.span()) {
        if (byte != static_cast<std::byte>(value)) return fmt::format("{} instead of {}", int(byte), value);
      }
    }
    return "";
  }
  void expect_end(Put& put, StatusCode code) {
    const auto status = put.end.wait(0);
    ASSERT_TRUE(status.has_value()) << "it is still open";
    EXPECT_EQ(status->code(), code) << status->to_string();
    EXPECT_EQ(put.end.count(), 1);
  }
  void expect_all_back() {
    writer_->sweep();
    const RelayBooks books = table_->books();
    EXPECT_EQ(books.puts, 0);
    EXPECT_EQ(books.held_bytes, 0u);
    // Just as many as at the start, and no more.
    Put a = put(1), b = put(2), c = put(3);
    EXPECT_NE(a.op.value, 0u);
    EXPECT_NE(b.op.value, 0u);
    EXPECT_EQ(c.op.value, 0u) << "more credits than there are";
    table_->cancel(a.op);
    table_->cancel(b.op);
  }

  RelayOptions options_;
  const InstanceId self_ = make_instance_id();
  std::unique_ptr<Writer> writer_;
  std::unique_ptr<OpTable> table_;
  uint64_t next_reader_ = 100;
};

TEST_F(Slots, AReaderSeesTheWritersBytes) {
  Reader reader = connect();
  Put sent = put(7, {1, 0, 4097, 64});
  const auto held = claim(reader, sent);
  ASSERT_TRUE(held.ok()) << held.status().to_string();
  EXPECT_EQ(wrong(reader, *held, sent.sizes, 7), "");
  for (const SharedBytes& part : reader.channel->parts(*held, sent.sizes)) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part.data()) % kPartAlignment, 0u);
  }
  writer_->sweep();
  EXPECT_EQ(sent.end.count(), 0);
  EXPECT_TRUE(reader.channel->release(*held));
  writer_->sweep();
  expect_end(sent, StatusCode::kOk);
  expect_all_back();
}

// The offsets of docs/relay-shm.md, read as bytes.
TEST_F(Slots, TheTablesAreAsDocumented) {
  Put first = put(7, {1, 100}, 3, 77);
  const auto share = writer_->add_reader(1, 1);
  ASSERT_TRUE(share.ok());
  const auto number = [&](int fd, off_t offset, std::size_t bytes) {
    uint64_t value = 0;
    EXPECT_EQ(::pread(fd, &value, bytes, offset), static_cast<ssize_t>(bytes));
    return value;
  };
  EXPECT_EQ(number(share->state, 0, 4), 0x48534D4Du);
  EXPECT_EQ(number(share->state, 4, 4), 1u);
  EXPECT_EQ(number(share->state, 8, 4), 2u);
  writer_->set_asleep(true);
  EXPECT_EQ(number(share->state, 12, 4), 1u);
  EXPECT_EQ(number(share->state, 16, 4), 0u);
  const off_t slot = 64 + 128 * static_cast<off_t>(slot_of(first));
  const Descriptor& d = first.descriptor;
  EXPECT_EQ(number(share->state, slot, 8), d.generation * 4 + 1);
  EXPECT_EQ(number(share->state, slot + 8, 8), decode_tail(d.tail)->key);
  EXPECT_EQ(number(share->state, slot + 16, 8), first.op.value);
  EXPECT_EQ(number(share->state, slot + 24, 8), 77u);
  const uint64_t offset = number(share->state, slot + 32, 8);
  EXPECT_EQ(number(share->state, slot + 40, 8), 4096u);
  EXPECT_EQ(number(share->state, slot + 48, 8), 101u);
  EXPECT_EQ(number(share->state, slot + 56, 8), d.sizes_hash);
  EXPECT_EQ(number(share->state, slot + 64, 4), 2u);
  EXPECT_EQ(number(share->state, slot + 68, 4), 3u);
  EXPECT_EQ(number(share->pool, static_cast<off_t>(offset), 1), 7u);
  EXPECT_EQ(number(share->pool, static_cast<off_t>(offset) + 64, 1), 7u) << "the second part, aligned";
  table_->cancel(first.op);
  EXPECT_EQ(number(share->state, slot, 8), d.generation * 4 + 2);
  writer_->stop_offering();
  EXPECT_EQ(number(share->state, 16, 4), 1u);
  EXPECT_EQ(pack({0x01020304, 0x0506, 0x0708}), 0x0102030405060708u);
}

TEST_F(Slots, ReleasingTwiceCountsOnce) {
  Reader reader = connect();
  Put sent = put(1, {10}, 2);
  const auto held = claim(reader, sent);
  ASSERT_TRUE(held.ok());
  EXPECT_TRUE(reader.channel->release(*held));
  EXPECT_FALSE(reader.channel->release(*held));
  EXPECT_FALSE(reader.channel->give_up(*held));
  writer_->sweep();
  EXPECT_EQ(sent.end.count(), 0) << "one of two readers is not two";
  const auto second = claim(reader, sent);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(reader.channel->release(*second));
  writer_->sweep();
  expect_end(sent, StatusCode::kOk);
  EXPECT_FALSE(reader.channel->release(*second)) << "after the end";
  expect_all_back();
}

TEST_F(Slots, AnOldGenerationHoldsNothing) {
  options_.credits = 1;
  start();
  Reader reader = connect();
  Put old = put(1);
  const auto before = claim(reader, old);
  ASSERT_TRUE(before.ok());
  EXPECT_TRUE(reader.channel->release(*before));
  writer_->sweep();
  Put now = put(2);
  ASSERT_EQ(slot_of(now), slot_of(old));
  EXPECT_EQ(claim(reader, old).status().code(), StatusCode::kInvalidArgument);
  const auto held = claim(reader, now);
  ASSERT_TRUE(held.ok()) << held.status().to_string();
  EXPECT_FALSE(reader.channel->release(*before)) << "it would end another put";
  writer_->sweep();
  EXPECT_EQ(now.end.count(), 0);
  EXPECT_EQ(wrong(reader, *held, now.sizes, 2), "");
  EXPECT_TRUE(reader.channel->release(*held));
  writer_->sweep();
  expect_end(now, StatusCode::kOk);
}

TEST_F(Slots, WhatIsHeldIsNotUsedAgain) {
  Reader reader = connect();
  Put sent = put(9, {100'000});
  const auto held = claim(reader, sent);
  ASSERT_TRUE(held.ok());
  table_->cancel(sent.op);
  expect_end(sent, StatusCode::kCancelled);
  EXPECT_FALSE(reader.channel->offered(*held));
  EXPECT_EQ(claim(reader, sent).status().code(), StatusCode::kInvalidArgument);
  for (int i = 0; i < 50; ++i) {  // the other credit goes on
    Put other = put(i, {100'000});
    ASSERT_NE(other.op.value, 0u);
    EXPECT_EQ(put(i).op.value, 0u);
    table_->cancel(other.op);
  }
  EXPECT_EQ(wrong(reader, *held, sent.sizes, 9), "");
  EXPECT_EQ(table_->books().held_bytes, 100'000u);
  EXPECT_TRUE(reader.channel->release(*held));
  expect_all_back();
}

TEST_F(Slots, GetsBeyondTheReadersAreRefused) {
  Reader reader = connect();
  Put sent = put(1);
  const auto held = claim(reader, sent);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(claim(reader, sent).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(reader.channel->give_up(*held));
  writer_->sweep();
  EXPECT_EQ(sent.end.count(), 0);
  const auto again = claim(reader, sent);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(reader.channel->release(*again));
  EXPECT_FALSE(claim(reader, sent).ok());
  writer_->sweep();
  expect_end(sent, StatusCode::kOk);
}

TEST_F(Slots, DescriptorsThatDoNotFitTakeNothing) {
  Reader reader = connect(5);
  Put sent = put(1, {100, 200}, 1, 5);
  EXPECT_EQ(claim(reader, sent, 6).status().code(), StatusCode::kInvalidArgument) << "for another reader";
  const auto spoiled = [&](const std::function<void(Descriptor&)>& spoil) {
    Put copy;
    copy.sizes = sent.sizes;
    copy.descriptor = sent.descriptor;
    spoil(copy.descriptor);
    return claim(reader, copy, 5).status().code();
  };
  const auto with_tail = [&](const Tail& tail) { return spoiled([&](Descriptor& d) { d.tail = encode_tail(tail); }); };
  const Tail tail = *decode_tail(sent.descriptor.tail);
  const StatusCode refused = StatusCode::kInvalidArgument;
  EXPECT_EQ(with_tail({tail.slot, tail.key + 1}), refused);
  EXPECT_EQ(with_tail({tail.slot + 1, tail.key}), refused);
  EXPECT_EQ(with_tail({2, tail.key}), refused);
  EXPECT_EQ(with_tail({UINT32_MAX, tail.key}), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { d.tail.pop_back(); }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { d.tail[4] = 1; }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { ++d.generation; }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { d.generation = 0; }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { d.generation += uint64_t{1} << 32; }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { ++d.op.value; }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { ++d.parts; }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { ++d.bytes; }), refused);
  EXPECT_EQ(spoiled([](Descriptor& d) { ++d.sizes_hash; }), refused);
  EXPECT_EQ(reader.channel->claim(sent.descriptor, Sizes{std::size_t{1} << 40, 200}, 5).status().code(), refused);
  EXPECT_EQ(unpack(reader.word(tail.slot).load()).held, 0);
  EXPECT_TRUE(claim(reader, sent, 5).ok());
}

// The points at which a reader may die: the kernel closes its socket, and the writer sees that.
TEST_F(Slots, AReaderThatDiesAtAnyPointGivesAllBack) {
  enum Point { kConnected, kIntended, kClaimed, kClaimedAndRevoked, kReleased };
  for (const Point point : {kConnected, kIntended, kClaimed, kClaimedAndRevoked, kReleased}) {
    SCOPED_TRACE(point);
    Reader reader = connect(5);
    Put sent = put(1);
    if (point == kIntended) {  // it wrote its hold, and did not come to look whether that is right
      reader.word(slot_of(sent)).store(pack({generation_of(sent), 1, 0}));
    } else if (point != kConnected) {
      const auto held = claim(reader, sent);
      ASSERT_TRUE(held.ok());
      if (point == kClaimedAndRevoked) table_->cancel(sent.op);
      if (point == kReleased) {
        EXPECT_TRUE(reader.channel->release(*held));
      }
    }
    writer_->remove_reader(reader.id);
    switch (point) {
      case kConnected: {  // nothing of the put has happened: another one may have it
        EXPECT_EQ(sent.end.count(), 0);
        Reader other = connect(6);
        const auto held = claim(other, sent);
        ASSERT_TRUE(held.ok());
        EXPECT_TRUE(other.channel->release(*held));
        writer_->sweep();
        expect_end(sent, StatusCode::kOk);
        break;
      }
      case kIntended:
      case kClaimed:
        expect_end(sent, StatusCode::kUnavailable);
        break;
      case kClaimedAndRevoked:
        expect_end(sent, StatusCode::kCancelled);
        break;
      case kReleased:
        expect_end(sent, StatusCode::kOk);
    }
    expect_all_back();
  }
}

TEST_F(Slots, APutForADeadReaderEnds) {
  Reader reader = connect(5);
  Put sent = put(1, {10}, 1, 5), others = put(1, {10}, 1, 6);
  writer_->remove_reader(reader.id);
  expect_end(sent, StatusCode::kUnavailable);
  EXPECT_EQ(others.end.count(), 0);
  writer_->destination_gone(6);
  expect_end(others, StatusCode::kUnavailable);
  expect_all_back();
}

TEST_F(Slots, TheOtherReadersOfAPutAreNotHarmedByADeath) {
  Reader dead = connect(5), living = connect(6);
  Put sent = put(3, {50'000}, 2);
  const auto held = claim(living, sent);
  ASSERT_TRUE(claim(dead, sent).ok() && held.ok());
  writer_->remove_reader(dead.id);
  EXPECT_EQ(sent.end.count(), 0) << "one still reads";
  EXPECT_EQ(wrong(living, *held, sent.sizes, 3), "");
  EXPECT_TRUE(living.channel->release(*held));
  writer_->sweep();
  expect_end(sent, StatusCode::kUnavailable);
  expect_all_back();
}

TEST_F(Slots, AReaderThatLiesHurtsNoOtherReader) {
  Reader liar = connect(5), honest = connect(6);
  Put sent = put(4, {30'000}, 2);
  const auto held = claim(honest, sent);
  ASSERT_TRUE(held.ok());
  liar.word(slot_of(sent)).store(pack({generation_of(sent), 0, UINT16_MAX}));
  liar.word(1 - slot_of(sent)).store(pack({UINT32_MAX, UINT16_MAX, UINT16_MAX}));
  writer_->sweep();
  expect_end(sent, StatusCode::kOk);  // its own table claims so, and at most for as many as there are
  EXPECT_EQ(table_->books().bad_frames, 1u);
  for (int i = 0; i < 20; ++i) {
    Put other = put(i, {30'000});
    ASSERT_NE(other.op.value, 0u);
    table_->cancel(other.op);
  }
  EXPECT_EQ(wrong(honest, *held, sent.sizes, 4), "") << "its memory was used again";
  EXPECT_TRUE(honest.channel->release(*held));
  writer_->remove_reader(liar.id);
  expect_all_back();
}

TEST_F(Slots, AReaderThatAPutIsNotForNeitherEndsNorHoldsIt) {
  Reader meant = connect(5), liar = connect(6);
  Put sent = put(4, {30'000}, 1, 5);
  liar.word(slot_of(sent)).store(pack({generation_of(sent), 0, 1}));
  writer_->sweep();
  EXPECT_EQ(sent.end.count(), 0) << "its reader has not read it";
  const auto held = claim(meant, sent, 5);
  ASSERT_TRUE(held.ok()) << held.status().to_string();
  liar.word(slot_of(sent)).store(pack({generation_of(sent), 1, UINT16_MAX}));
  EXPECT_TRUE(meant.channel->release(*held));
  writer_->sweep();
  expect_end(sent, StatusCode::kOk);
  EXPECT_EQ(table_->books().held_bytes, 0u) << "the liar holds it";
  EXPECT_EQ(table_->books().bad_frames, 0u);
  // What the liar's table has of a put is no reason to end it when the liar goes.
  Put second = put(5, {30'000}, 1, 5);
  liar.word(slot_of(second)).store(pack({generation_of(second), 0, 1}));
  writer_->remove_reader(liar.id);
  EXPECT_EQ(second.end.count(), 0);
  table_->cancel(second.op);
  expect_all_back();
}

TEST_F(Slots, AClosedWriterOffersNothing) {
  Reader reader = connect();
  Put sent = put(1), held_put = put(2);
  const auto held = claim(reader, held_put);
  ASSERT_TRUE(held.ok());
  writer_->stop_offering();
  table_->close();
  writer_->close();
  EXPECT_EQ(claim(reader, sent).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(wrong(reader, *held, held_put.sizes, 2), "");
  EXPECT_TRUE(reader.channel->release(*held));
  EXPECT_EQ(table_->books().held_bytes, 0u);
}

// One thread offers and revokes, two take, look and release. A reader that has taken a put sees its bytes and no
// others, until it releases them, whether it was revoked meanwhile or not.
TEST_F(Slots, ReaderAndWriterMeetOnOneSlot) {
  std::atomic<bool> stop{false};
  std::atomic<int> seen{0}, wrongs{0};
  std::mutex mutex;
  Put current;
  int value = 0;
  std::vector<std::thread> threads;
  for (uint64_t self = 1; self <= 2; ++self) {
    Reader reader = connect(self);
    threads.emplace_back([&, self, reader = std::make_shared<Reader>(std::move(reader))] {
      while (!stop) {
        Put mine;
        int wanted = 0;
        {
          std::lock_guard lock(mutex);
          mine = current;
          wanted = value;
        }
        if (mine.op.value == 0) continue;
        const auto held = claim(*reader, mine, self);
        if (!held.ok()) continue;
        if (!wrong(*reader, *held, mine.sizes, wanted).empty()) ++wrongs;
        if (!reader->channel->release(*held)) ++wrongs;
        ++seen;
      }
    });
  }
  for (int i = 1; i <= 20'000 || seen < 100; ++i) {
    if (i > 5'000'000) break;
    Put next = put(i & 0xFF, {3000}, 2);
    if (next.op.value == 0) {
      writer_->sweep();  // both are still being read
      continue;
    }
    {
      std::lock_guard lock(mutex);
      current = next;
      value = i & 0xFF;
    }
    if (i % 3 == 0) std::this_thread::yield();
    if (i % 2) writer_->sweep();
    table_->cancel(next.op);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrongs, 0);
  EXPECT_GE(seen, 100);
  expect_all_back();
}

}  // namespace
}  // namespace millrace::shm
