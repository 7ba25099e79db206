// The TCP relay over loopback against a plain socket program, in two processes, in one run.
//
//   ./build/bench/bench/relay_tcp_bench [REPEATS [STREAMS [MIB]]]
//
// The plain program asks for N bytes with 8 bytes and receives them with recv() into one buffer, 256 KiB a call at
// most; its peer sends them with send(), 256 KiB a call. The relay gets a put of N bytes: with checksums and without,
// into a buffer of the caller's and into memory of its own; one get after the other, each from the end of the one
// before, as the plain program does it. All variants of a size take turns; the figures are medians. The second process
// is this program, spawned with --writer.
//
// Everything is measured twice (bench/waiting.h): the plain program polling on a processor for each side, against the
// relay as it is; and everybody sleeping, on processors that are kept awake.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "relay/tcp/tcp_relay.h"
#include "waiting.h"

extern char** environ;

namespace {

using namespace millrace;
using bench::Waiting;
using Clock = std::chrono::steady_clock;

constexpr int kCommandFd = 3;
constexpr std::size_t kMiB = 1u << 20;
constexpr std::size_t kLargest = 256 * kMiB;
constexpr std::size_t kCallBytes = 256u << 10;  // a call of the plain program
constexpr std::size_t kDescriptorRoom = 4096;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void read_all(int fd, void* data, std::size_t size, Waiting waiting = Waiting::kSleep) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = bench::receive(waiting, fd, at, std::min(size, kCallBytes));
    if (n <= 0) std::exit(n == 0 ? 0 : 1);
    at += n;
    size -= static_cast<std::size_t>(n);
  }
}

void write_all(int fd, const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = send(fd, at, std::min(size, kCallBytes), MSG_NOSIGNAL);
    if (n <= 0) std::exit(1);
    at += n;
    size -= static_cast<std::size_t>(n);
  }
}

void no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int streams = RelayOptions().streams;  // of the reader, which opens the connections; 0: as it chooses

RelayOptions options(bool checksum) {
  RelayOptions o;
  o.streams = streams;
  o.pool_bytes = std::size_t{8} << 30;
  o.credits = 4096;
  o.checksum = checksum;
  o.lease_ms = 600'000;
  return o;
}

// What the parent asks of the writer: puts, of which it gets the descriptors.
struct Order {
  uint64_t bytes = 0;
  uint32_t count = 0;
  uint32_t checksum = 0;
};
struct DescriptorReply {
  uint32_t size = 0;
  char bytes[kDescriptorRoom] = {};
};

void serve_raw(int listener, const std::byte* data, Waiting waiting) {
  const int fd = accept(listener, nullptr, nullptr);
  no_delay(fd);
  for (uint64_t wanted = 0;;) {
    read_all(fd, &wanted, sizeof(wanted), waiting);
    write_all(fd, data, wanted);
  }
}

int run_writer(Waiting waiting) {
  bench::settle(waiting, 1);
  Buffer buffer(kLargest);
  for (std::size_t i = 0; i < kLargest; ++i) buffer.data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  const SharedBytes bytes(std::move(buffer));
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 1) != 0) return 1;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::thread(serve_raw, listener, bytes.data(), waiting).detach();
  const uint16_t port = ntohs(address.sin_port);
  write_all(kCommandFd, &port, sizeof(port));
  std::unique_ptr<Relay> relays[2] = {std::move(*make_tcp_relay(options(false))),
                                      std::move(*make_tcp_relay(options(true)))};
  for (Order order;;) {
    read_all(kCommandFd, &order, sizeof(order));
    for (uint32_t i = 0; i < order.count; ++i) {
      Result<PutTicket> put =
          relays[order.checksum]->put({.parts = {bytes.slice(0, order.bytes)}, .done = [](const Status&) {}});
      DescriptorReply reply;
      reply.size = static_cast<uint32_t>(put->descriptor.size());
      std::memcpy(reply.bytes, put->descriptor.data(), reply.size);
      write_all(kCommandFd, &reply, sizeof(reply));
    }
  }
}

// Computed by this process and the writer so far.
double cpu_seconds(pid_t writer) {
  double sum = 0;
  clockid_t clocks[2] = {CLOCK_PROCESS_CPUTIME_ID, CLOCK_PROCESS_CPUTIME_ID};
  if (clock_getcpuclockid(writer, &clocks[1]) != 0) std::exit(1);
  for (const clockid_t clock : clocks) {
    timespec t{};
    clock_gettime(clock, &t);
    sum += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  return sum;
}

class Bench {
 public:
  Bench(int commands, uint16_t port, Waiting waiting) : commands_(commands), waiting_(waiting), destination_(kLargest) {
    raw_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (connect(raw_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) std::exit(1);
    no_delay(raw_);
    for (const bool checksum : {false, true}) relays_[checksum] = std::move(*make_tcp_relay(options(checksum)));
    std::memset(destination_.data(), 1, kLargest);
  }

  // Seconds of each transfer.
  std::vector<double> raw(std::size_t bytes, int count) {
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
      const auto start = Clock::now();
      const uint64_t wanted = bytes;
      write_all(raw_, &wanted, sizeof(wanted));
      read_all(raw_, destination_.data(), bytes, waiting_);
      times.push_back(seconds_since(start));
    }
    return times;
  }

  std::vector<double> relay(std::size_t bytes, int count, bool checksum, bool own_memory) {
    const Order order{bytes, static_cast<uint32_t>(count), checksum};
    write_all(commands_, &order, sizeof(order));
    std::vector<std::string> descriptors;
    for (int i = 0; i < count; ++i) {
      DescriptorReply reply;
      read_all(commands_, &reply, sizeof(reply));
      descriptors.emplace_back(reply.bytes, reply.size);
    }
    Chain chain(*this, std::move(descriptors), bytes, checksum, own_memory);
    return chain.run();
  }

 private:
  // Gets, each begun by the end of the one before.
  class Chain {
   public:
    Chain(Bench& bench, std::vector<std::string> descriptors, std::size_t bytes, bool checksum, bool own_memory)
        : bench_(bench),
          descriptors_(std::move(descriptors)),
          bytes_(bytes),
          checksum_(checksum),
          own_memory_(own_memory) {}
    std::vector<double> run() {
      begin();
      over_.wait(1);
      return std::move(times_);
    }

   private:
    void begin() {
      GetRequest request;
      request.descriptor = descriptors_[times_.size()];
      request.sizes = {bytes_};
      if (!own_memory_) request.destination = {{bench_.destination_.data(), bytes_}};
      request.done = [this](const Result<std::vector<SharedBytes>>& parts) {
        if (!parts.ok()) {
          fmt::print(stderr, "{}\n", parts.status().to_string());
          std::exit(1);
        }
        times_.push_back(seconds_since(start_));
        if (times_.size() < descriptors_.size()) return begin();
        over_.add();
      };
      start_ = Clock::now();
      if (!bench_.relays_[checksum_]->get(std::move(request)).ok()) std::exit(1);
    }

    Bench& bench_;
    const std::vector<std::string> descriptors_;
    const std::size_t bytes_;
    const bool checksum_, own_memory_;
    Clock::time_point start_;
    std::vector<double> times_;
    bench::Counter over_{Waiting::kSleep};
  };

  const int commands_;
  const Waiting waiting_;
  int raw_ = -1;
  Buffer destination_;
  std::unique_ptr<Relay> relays_[2];
};

std::string load() {
  std::ifstream file("/proc/loadavg");
  std::string one;
  file >> one;
  return one;
}

struct Variant {
  std::vector<double> times;
  double cpu = 0;
};

void print_row(std::size_t mib, int repeat, const Variant (&variants)[5], std::size_t transfers) {
  const double bytes = static_cast<double>(mib * kMiB);
  const double raw = median(variants[0].times);
  fmt::print("{:>5} {:>3}  time {:>7.2f} |", mib, repeat, bytes / raw / 1e9);
  for (int i = 1; i < 5; ++i) {
    const double one = median(variants[i].times);
    fmt::print(" {:>8.2f} [{:>3.0f}%]", bytes / one / 1e9, 100 * raw / one);
  }
  fmt::print("   load {}\n{:>5} {:>3}   cpu {:>7.2f} |", load(), mib, repeat,
             bytes * static_cast<double>(transfers) / variants[0].cpu / 1e9);
  for (int i = 1; i < 5; ++i) {
    fmt::print(" {:>8.2f} [{:>3.0f}%]", bytes * static_cast<double>(transfers) / variants[i].cpu / 1e9,
               100 * variants[0].cpu / variants[i].cpu);
  }
  fmt::print("\n");
}

void throughput(Bench& bench, pid_t writer, int repeats, std::size_t only_mib) {
  fmt::print(
      "time: GB for a second, median of single transfers; cpu: GB for a second of computing in both processes.\n");
  fmt::print("In brackets: the share of the plain socket.\n");
  fmt::print("{:>5} {:>3} {:>13} | {:>15} {:>15} {:>15} {:>15}\n", "MiB", "run", "socket", "sum, buffer",
             "no sum, buffer", "sum, own", "no sum, own");
  for (const std::size_t mib : {1, 4, 16, 64, 256}) {
    if (only_mib != 0 && mib != only_mib) continue;
    const std::size_t bytes = mib * kMiB;
    const int count = static_cast<int>(std::clamp<std::size_t>(128 / mib, 1, 64));
    constexpr int kTurns = 3;
    for (int repeat = 0; repeat <= repeats; ++repeat) {
      Variant variants[5];
      for (int turn = 0; turn < kTurns; ++turn) {
        for (int i = 0; i < 5; ++i) {
          const double before = cpu_seconds(writer);
          const std::vector<double> times =
              i == 0 ? bench.raw(bytes, count) : bench.relay(bytes, count, i % 2 == 1, i >= 3);
          variants[i].cpu += cpu_seconds(writer) - before;
          variants[i].times.insert(variants[i].times.end(), times.begin(), times.end());
        }
      }
      if (repeat > 0) print_row(mib, repeat, variants, static_cast<std::size_t>(kTurns * count));  // 0 warms up
    }
  }
}

void latency(Bench& bench, int repeats) {
  constexpr int kCount = 2000;
  fmt::print("4 KiB, microseconds from the question to the bytes, p50 / p99\n");
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<double> raw = bench.raw(4096, kCount);
    std::vector<double> relay = bench.relay(4096, kCount, true, false);
    for (auto* times : {&raw, &relay}) std::sort(times->begin(), times->end());
    const auto at = [](const std::vector<double>& v, double q) {
      return v[static_cast<std::size_t>(q * (static_cast<double>(v.size()) - 1))] * 1e6;
    };
    fmt::print("  run {}: socket {:.1f} / {:.1f}, relay {:.1f} / {:.1f}   load {}\n", repeat + 1, at(raw, 0.5),
               at(raw, 0.99), at(relay, 0.5), at(relay, 0.99), load());
  }
}

void run(Waiting waiting, int repeats, std::size_t only_mib) {
  fmt::print("== {}{}\n", bench::name_of(waiting),
             waiting == Waiting::kSleep ? " on processors that are kept awake" : "");
  std::fflush(stdout);
  const bench::KeepAwake awake(waiting == Waiting::kSleep);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) std::exit(1);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], kCommandFd);
  char name[] = "relay_tcp_bench";
  char sleeping[] = "--writer", polling[] = "--polling-writer";
  char* arguments[] = {name, waiting == Waiting::kPoll ? polling : sleeping, nullptr};
  pid_t child = -1;
  if (pair[1] == kCommandFd || posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environ) != 0) {
    std::exit(1);
  }
  posix_spawn_file_actions_destroy(&actions);
  close(pair[1]);
  bench::settle(waiting, 0);
  uint16_t port = 0;
  read_all(pair[0], &port, sizeof(port));
  {
    Bench bench(pair[0], port, waiting);
    latency(bench, repeats);
    throughput(bench, child, repeats, only_mib);
  }
  bench::unsettle();
  close(pair[0]);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--writer") return run_writer(Waiting::kSleep);
  if (argc > 1 && std::string_view(argv[1]) == "--polling-writer") return run_writer(Waiting::kPoll);
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 3;
  if (argc > 2) streams = std::atoi(argv[2]);
  for (const Waiting waiting : {Waiting::kPoll, Waiting::kSleep}) {
    run(waiting, repeats, argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 0);
  }
  return 0;
}
