// PluginChannel over a plugin that is played here: senders without number, gets that wait for memory, and a close()
// that does not return.
#include "relay/plugin/plugin_channel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>

#include "base/clock.h"
#include "relay/testing/await.h"
#include "wire/limits.h"

namespace millrace::plugin {
namespace {

// The engine that the plugin below makes of it.
struct Engine {
  std::unique_ptr<void, decltype(&std::free)> memory{nullptr, &std::free};
  std::deque<std::string> messages;  // that receive() has
  uint64_t connects = 0, disconnects = 0;
  int reads = 0;                           // begun
  int read_code = MILLRACE_RELAY_PENDING;  // of all of them
  std::function<void()> on_close = [] {};
};

Engine& of(millrace_relay_engine* engine) { return *reinterpret_cast<Engine*>(engine); }
Engine* g_engine = nullptr;  // the one that open() gives

constexpr millrace_relay_plugin kPlugin = {
    .abi = MILLRACE_RELAY_ABI,
    .struct_bytes = sizeof(millrace_relay_plugin),
    .name = "played",
    .same_process = 1,
    .same_host = 1,
    .across_hosts = 0,
    .zero = 0,
    .available = [](char*, size_t) { return MILLRACE_RELAY_OK; },
    .open =
        [](const millrace_relay_config* config, millrace_relay_engine** engine, void** memory, char*, size_t) {
          g_engine->memory.reset(std::aligned_alloc(4096, config->memory_bytes));
          *engine = reinterpret_cast<millrace_relay_engine*>(g_engine);
          *memory = g_engine->memory.get();
          return MILLRACE_RELAY_OK;
        },
    .close = [](millrace_relay_engine* engine) { of(engine).on_close(); },
    .blob =
        [](millrace_relay_engine*, void* out, size_t, size_t* size) {
          std::memcpy(out, "b", *size = 1);
          return MILLRACE_RELAY_OK;
        },
    .connect =
        [](millrace_relay_engine* engine, const void*, size_t, uint64_t* peer) {
          *peer = ++of(engine).connects;
          return MILLRACE_RELAY_OK;
        },
    .disconnect = [](millrace_relay_engine* engine, uint64_t) { ++of(engine).disconnects; },
    .read =
        [](millrace_relay_engine* engine, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t*) {
          ++of(engine).reads;
          return MILLRACE_RELAY_OK;
        },
    .poll = [](millrace_relay_engine* engine, uint64_t) { return of(engine).read_code; },
    .abandon = [](millrace_relay_engine*, uint64_t) {},
    .send = [](millrace_relay_engine*, uint64_t, const void*, size_t) { return MILLRACE_RELAY_OK; },
    .receive =
        [](millrace_relay_engine* engine, void* out, size_t, size_t* size) {
          std::deque<std::string>& messages = of(engine).messages;
          if (messages.empty()) return MILLRACE_RELAY_PENDING;
          *size = messages.front().size();
          std::memcpy(out, messages.front().data(), *size);
          messages.pop_front();
          return MILLRACE_RELAY_OK;
        },
};

class PluginChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    g_engine = &engine;
    core.channel = std::make_unique<PluginChannel>(core, kPlugin);
    channel = static_cast<PluginChannel*>(core.channel.get());
    const Status opened = channel->open();
    ASSERT_TRUE(opened.ok()) << opened.to_string();
  }

  // Each from another sender; the puts that they ask for are not there.
  void send_requests(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      Message message;
      const uint64_t number = ++senders;
      std::memcpy(message.from.data(), &number, sizeof number);
      message.to = core.instance.random;
      message.header.type = session::FrameType::kRequest;
      message.header.length = session::kRequestBytes;
      message.header.ticket = 1;
      message.payload = std::string(session::kRequestBytes, '\0');
      message.blob = "b";
      engine.messages.push_back(encode_message(message));
    }
    while (!engine.messages.empty()) channel->poll();
  }

  // A get into memory of its own, which no quota counts, with the GRANT that answers its REQUEST.
  relay_testing::AwaitGet get_granted(std::size_t bytes, RelayOp* op = nullptr) {
    relay_testing::AwaitGet end;
    std::vector<std::byte>& memory = destinations.emplace_back(bytes);
    const std::vector<std::size_t> sizes = {bytes};
    session::GetTask task;
    GetRequest request{.sizes = sizes, .destination = {memory}};
    request.done = end.callback();
    task.op = core.table.open_get(std::move(request), monotonic_ms()).value();
    task.writer.instance = writer;
    task.writer.key = to_hex(writer);
    task.writer.endpoint = "b";
    task.put = 5, task.generation = 6, task.total = bytes;
    core.reader.start(task);
    core.table.unpin(task.op);
    core.reader.flush();
    Message message{.from = writer.random, .to = core.instance.random};
    message.header.type = session::FrameType::kGrant;
    message.header.flags = session::kFlagWriter;
    message.header.length = 24;
    message.header.op = task.put, message.header.generation = task.generation, message.header.ticket = task.op.value;
    message.header.extra = bytes;
    message.payload = std::string(24, '\0');
    session::store_u64(reinterpret_cast<std::byte*>(message.payload.data()) + 8,
                       session::Layout(sizes, channel->traits().frames).block_bytes());
    engine.messages.push_back(encode_message(message));
    channel->poll();
    if (op != nullptr) *op = task.op;
    return end;
  }

  std::deque<std::vector<std::byte>> destinations;
  const InstanceId writer = make_instance_id();
  Engine engine;
  session::Core core{RelayOptions{.pool_bytes = 1 << 20}};
  PluginChannel* channel = nullptr;
  uint64_t senders = 0;
};

// Each costs a handle of the plugin's and a connect() on the loop's thread.
TEST_F(PluginChannelTest, SendersAreLimited) {
  send_requests(wire::kMaxPeers + 20);
  EXPECT_EQ(engine.connects, wire::kMaxPeers);
  // Those that read here take nothing from those that are read from.
  session::Target writer;
  writer.instance = make_instance_id();
  writer.endpoint = "b";
  EXPECT_TRUE(channel->connect(writer).ok());
  // Links that nothing is open on end by time, and others are made.
  (void)channel->check_time(monotonic_ms() + kIdlePeerMs);
  EXPECT_EQ(engine.disconnects, wire::kMaxPeers + 1);
  send_requests(1);
  EXPECT_EQ(engine.connects, wire::kMaxPeers + 2);
  channel->shut_down();
}

// The memory to receive into is taken first fit, and gets with destinations of their own are in no quota.
TEST_F(PluginChannelTest, AGetWaitsForTheMemoryOfAnother) {
  constexpr std::size_t kBytes = 1 << 20;
  const auto first = get_granted(kBytes);
  EXPECT_EQ(engine.reads, 1);
  RelayOp cancelled;
  const auto second = get_granted(kBytes), third = get_granted(kBytes, &cancelled), fourth = get_granted(1);
  channel->poll();
  EXPECT_EQ(engine.reads, 1);
  EXPECT_FALSE(second.ready() || third.ready() || fourth.ready());
  core.table.cancel(cancelled);
  core.reader.get_ended(cancelled, StatusCode::kCancelled);
  channel->poll();
  EXPECT_TRUE(third.ready());
  engine.read_code = MILLRACE_RELAY_GONE;  // the first and then, in a later turn, what has waited
  channel->poll();
  EXPECT_TRUE(first.ready());
  EXPECT_EQ(engine.reads, 3);
  channel->poll();
  EXPECT_TRUE(second.ready() && fourth.ready());
  EXPECT_EQ(core.table.books().gets, 0);
  channel->shut_down();
}

// It has its credit already when close() begins. The plugin is inside close() until the put has its answer.
TEST_F(PluginChannelTest, APutIsRefusedWhileThePluginCloses) {
  session::Put put;
  const std::size_t sizes[] = {64};
  put.layout = session::Layout(sizes, {});
  PutRequest request;
  request.parts.push_back(SharedBytes::of(std::string(64, 'x')));
  put.request = std::make_shared<PutRequest>(std::move(request));
  std::future<Status> stored;
  bool answered = false;
  engine.on_close = [&] {
    stored = std::async(std::launch::async, [&] { return channel->store(put).status(); });
    answered = stored.wait_for(std::chrono::seconds(120)) == std::future_status::ready;
  };
  channel->shut_down();
  EXPECT_TRUE(answered) << "it waits for the plugin";
  EXPECT_EQ(stored.get().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace::plugin
