// One-way times and throughput of small control messages between two processes: our Outbox and Inbox against plain
// libzmq PUSH and PULL with the same bytes, in one run.
//
//   control_bench [rounds=20] [messages=200] [flood=1000000] [transport=ipc|tcp] [awake|idle]
//
// One-way: this process stamps and sends one message at a time, 200 us after the last one was received, so the receiver
// always sleeps in its wait; a child process stamps it when the message is there: for us decoded, for libzmq as bytes.
// Rounds go through the roads in turn, so that all see the same machine. Shown: the median of the rounds' p50 and p99,
// and of the rounds' ratios to plain libzmq. "with a waker": the receiver waits for wake-ups of its own process, too.
// The processors are kept awake meanwhile (bench/waiting.h) unless the fifth argument is `idle`: after a halt, what a
// message costs is waking the processor and filling its caches again, which the codec's larger code pays for twice.
// Flood: as many messages as fast as they go; plain libzmq blocks where the queue is full, we try again.
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control/zmq_mailbox.h"
#include "waiting.h"
#include "wire/codec.h"

namespace {

using namespace millrace;

constexpr int kPauseUs = 200;
constexpr int kRoads = 6;  // three ways, two messages
const char* const kWays[] = {"libzmq", "mailbox", "mailbox with a waker"};
const char* const kMessages[] = {"AbortRequest", "ChunkBatch of one delta"};

struct Shared {  // between the two processes
  std::atomic<uint64_t> received[kRoads];
  std::atomic<int64_t> last_ns[kRoads];  // when the last one was there
  std::atomic<bool> stop;
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void die_unless(bool good, const std::string& what) {
  if (good) return;
  fmt::print(stderr, "control_bench: {}\n", what);
  std::exit(2);
}

wire::Message message_of(int kind) {
  if (kind == 0) return wire::AbortRequest{ReqId{123456}};
  wire::ChunkBatch batch{.from = {.session = 1, .stage = "a"}};
  batch.chunks.push_back(
      {.id = ReqId{123456}, .body = wire::TokenDelta{.id = ReqId{123456}, .tokens = {4711}, .usage = {100, 7, 64}}});
  return batch;
}

void note(Shared& shared, int road) {
  shared.last_ns[road].store(now_ns());
  shared.received[road].fetch_add(1);
}

// ---- the child

void receive_plain(Shared& shared, int road, const std::string& endpoint) {
  void* context = zmq_ctx_new();
  void* socket = zmq_socket(context, ZMQ_PULL);
  const int timeout_ms = 100;
  zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
  die_unless(zmq_bind(socket, endpoint.c_str()) == 0, "cannot bind " + endpoint);
  zmq_msg_t frame;
  zmq_msg_init(&frame);
  while (!shared.stop) {
    if (zmq_msg_recv(&frame, socket, 0) >= 0) note(shared, road);
  }
  zmq_msg_close(&frame);
  zmq_close(socket);
  zmq_ctx_term(context);
}

void receive_ours(Shared& shared, int road, const std::string& endpoint, bool waker) {
  ZmqContext context;
  auto inbox = bind_inbox(context, endpoint);
  die_unless(inbox.ok(), inbox.status().to_string());
  const auto kept = waker ? (*inbox)->waker() : nullptr;
  while (!shared.stop) {
    if ((*inbox)->receive(100)) note(shared, road);
  }
}

void run_child(Shared& shared, const std::vector<std::string>& endpoints) {
  std::vector<std::thread> threads;
  for (int road = 0; road < kRoads; ++road) {
    threads.emplace_back([&, road] {
      const int way = road % 3;
      if (way == 0) return receive_plain(shared, road, endpoints[static_cast<std::size_t>(road)]);
      receive_ours(shared, road, endpoints[static_cast<std::size_t>(road)], way == 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- the parent

// True when it was taken.
using Send = std::function<bool(bool may_block)>;

struct Sender {
  Sender(int road, const std::string& endpoint) : kind(road / 3) {
    if (road % 3 != 0) {
      auto outbox = connect_outbox(ours, endpoint, BeforeConnected::kKeep);
      die_unless(outbox.ok(), outbox.status().to_string());
      send = [this, out = *outbox](bool) {
        wire::Message message = message_of(kind);
        return out->send(message).ok();
      };
      return;
    }
    context = zmq_ctx_new();
    socket = zmq_socket(context, ZMQ_PUSH);
    die_unless(zmq_connect(socket, endpoint.c_str()) == 0, "cannot connect to " + endpoint);
    send = [this, frame = *wire::encode(message_of(kind))](bool may_block) {
      return zmq_send(socket, frame.data(), frame.size(), may_block ? 0 : ZMQ_DONTWAIT) >= 0;
    };
  }
  ~Sender() {
    send = nullptr;
    if (socket == nullptr) return;
    zmq_close(socket);
    zmq_ctx_term(context);
  }
  int kind;
  ZmqContext ours;
  void *context = nullptr, *socket = nullptr;
  Send send;
};

struct Times {
  double p50_us = 0, p99_us = 0;
};

Times one_way(Shared& shared, int road, Sender& sender, int messages) {
  std::vector<double> us;
  for (int i = 0; i < messages; ++i) {
    const uint64_t before = shared.received[road].load();
    const int64_t start = now_ns();
    while (!sender.send(false)) continue;
    while (shared.received[road].load() == before) std::this_thread::sleep_for(std::chrono::microseconds(20));
    us.push_back(static_cast<double>(shared.last_ns[road].load() - start) / 1000);
    std::this_thread::sleep_for(std::chrono::microseconds(kPauseUs));
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[us.size() * 99 / 100]};
}

double flood(Shared& shared, int road, Sender& sender, int64_t messages) {
  const uint64_t goal = shared.received[road].load() + static_cast<uint64_t>(messages);
  const int64_t start = now_ns();
  for (int64_t i = 0; i < messages;) {
    if (sender.send(true)) {
      ++i;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  while (shared.received[road].load() < goal) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return static_cast<double>(messages) / (static_cast<double>(now_ns() - start) / 1e9);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_parent(Shared& shared, const std::vector<std::string>& endpoints, int rounds, int messages, int64_t total) {
  std::vector<std::unique_ptr<Sender>> senders;
  for (int road = 0; road < kRoads; ++road) {
    senders.push_back(std::make_unique<Sender>(road, endpoints[static_cast<std::size_t>(road)]));
  }
  std::vector<double> p50[kRoads], p99[kRoads], ratio50[kRoads], ratio99[kRoads];
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    Times plain;
    for (int road = 0; road < kRoads; ++road) {
      const Times times = one_way(shared, road, *senders[static_cast<std::size_t>(road)], messages);
      if (road % 3 == 0) plain = times;
      if (round < 0) continue;
      p50[road].push_back(times.p50_us), p99[road].push_back(times.p99_us);
      ratio50[road].push_back(times.p50_us / plain.p50_us), ratio99[road].push_back(times.p99_us / plain.p99_us);
    }
  }
  fmt::print("one-way, {} rounds of {} messages: medians of the rounds\n", rounds, messages);
  for (int road = 0; road < kRoads; ++road) {
    fmt::print("  {:24} {:21} p50 {:7.1f} us  p99 {:8.1f} us  to libzmq: p50 x {:.2f}, p99 x {:.2f}\n",
               kMessages[road / 3], kWays[road % 3], median(p50[road]), median(p99[road]), median(ratio50[road]),
               median(ratio99[road]));
  }
  if (total > 0) fmt::print("flood of {} messages, each way twice in turn\n", total);
  for (int kind = 0; kind < 2 && total > 0; ++kind) {
    double best[2] = {};
    for (int turn = 0; turn < 4; ++turn) {
      const int road = 3 * kind + turn % 2;
      best[turn % 2] = std::max(best[turn % 2], flood(shared, road, *senders[static_cast<std::size_t>(road)], total));
    }
    fmt::print("  {:24} libzmq {:9.0f}/s  mailbox {:9.0f}/s  x {:.2f}\n", kMessages[kind], best[0], best[1],
               best[1] / best[0]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const int rounds = static_cast<int>(number(1, 20)), messages = static_cast<int>(number(2, 200));
  const bool tcp = argc > 4 && std::strcmp(argv[4], "tcp") == 0;
  die_unless(rounds > 0 && messages > 0, "rounds and messages must be at least 1");
  std::string folder = "/tmp/control-bench-XXXXXX";
  die_unless(::mkdtemp(folder.data()) != nullptr, "no temporary folder");
  std::vector<std::string> endpoints;
  for (int road = 0; road < kRoads; ++road) {
    endpoints.push_back(tcp ? fmt::format("tcp://127.0.0.1:{}", 28'700 + road)
                            : fmt::format("ipc://{}/{}", folder, road));
  }
  const bench::KeepAwake awake(argc <= 5 || std::strcmp(argv[5], "idle") != 0);
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  die_unless(memory != MAP_FAILED, "no shared memory");
  Shared& shared = *new (memory) Shared{};
  const pid_t child = ::fork();  // before any thread
  if (child == 0) {
    run_child(shared, endpoints);
    ::_exit(0);
  }
  run_parent(shared, endpoints, rounds, messages, number(3, 1'000'000));
  shared.stop = true;
  ::waitpid(child, nullptr, 0);
  std::filesystem::remove_all(folder);
  return 0;
}
