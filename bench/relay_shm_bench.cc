// The shared-memory relay between two processes, against a plain memcpy and a bare socket in the same run.
//
//   relay_shm_bench [rounds=20] [messages=20000] [largest_mib=256] [awake|idle]
//
// One way: from before put() until the reader, in another process, has read the first and the last byte of what get()
// gave it; the descriptor goes over a socket pair, as it would over the control plane. Before each transfer the same
// bytes are copied once by memcpy into warm private memory of this process. Streamed: a train of such messages, a few
// of them on their way at a time, as a busy edge has them; the time until the reader has the last one, over their
// number: waking the reader then overlaps with the next copy. Its measure is a train of memcpys into as many buffers in
// turn.
//
// Figures are medians over the rounds, `best` of the shortest times. A ratio of 1 means that a message takes as long as
// one copy. `cpu` compares the CPU time of the thread in put() with that in memcpy: on a shared machine the steadier
// one. Copies of each byte are not assumed: the reader looks in /proc/self/maps whether what it was given lies in the
// writer's pool itself.
//
// Everything is measured twice: with everybody polling, and with everybody sleeping until he is woken
// (bench/waiting.h), the latter on processors that are kept awake unless the fourth argument is `idle`.
//
// Latency: 4 KiB messages, one at a time; `socket` is the same socket pair carrying the descriptor alone, the floor of
// what any relay could reach here. `done` is from the reader's release to the end of the put.
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "relay/shm/shm_relay.h"
#include "waiting.h"

namespace {

using namespace millrace;
using bench::Counter;
using bench::Waiting;

constexpr std::size_t kMib = std::size_t{1} << 20;
constexpr std::size_t kSmallBytes = 4096;
constexpr int kWarmRounds = 3;  // not counted
constexpr int kTrain = 8;       // messages streamed in a row
// How many of them at a time.
constexpr int on_their_way(std::size_t size) { return size <= 16 * kMib ? 4 : 2; }

int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

[[noreturn]] void die(const std::string& why) {
  fmt::print(stderr, "relay_shm_bench: {}\n", why);
  std::exit(2);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

// What the reader tells of one message.
struct Report {
  int64_t received_ns = 0;
  int64_t released_ns = 0;
  int64_t in_pool = 0;  // the bytes lie in the writer's memory: nothing was copied
};

void send_all(int fd, const void* bytes, std::size_t size) {
  if (::send(fd, bytes, size, 0) != static_cast<ssize_t>(size)) die("the socket is gone");
}

bool in_pool_mapping(const std::byte* data) {
  std::ifstream maps("/proc/self/maps");
  const auto at = reinterpret_cast<uintptr_t>(data);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 && at >= begin && at < end) {
      return line.find("memfd:millrace-pool") != std::string::npos;
    }
  }
  return false;
}

// A message is its number of bytes (8, native), then the descriptor; of 0 bytes it is only answered.
constexpr uint64_t kQuick = uint64_t{1} << 63;  // with the number: do not look where the bytes lie
void reader_main(int fd, Waiting waiting) {
  Result<std::unique_ptr<Relay>> relay = make_shm_relay({.pool_bytes = kMib, .credits = 1});
  if (!relay.ok()) die(relay.status().to_string());
  std::vector<char> message(8192);
  volatile unsigned sink = 0;
  while (true) {
    const ssize_t got = bench::receive(waiting, fd, message.data(), message.size());
    if (got < 8) return;
    uint64_t bytes = 0;
    std::memcpy(&bytes, message.data(), 8);
    const bool quick = (bytes & kQuick) != 0;
    bytes &= ~kQuick;
    Report report;
    if (bytes != 0) {
      std::vector<SharedBytes> parts;
      Counter came(waiting);
      GetRequest get;
      get.descriptor.assign(message.data() + 8, static_cast<std::size_t>(got) - 8);
      get.sizes = {bytes};
      get.done = [&](Result<std::vector<SharedBytes>> result) {
        if (!result.ok()) die(result.status().to_string());
        parts = std::move(*result);
        came.add();
      };
      if (const auto op = (*relay)->get(std::move(get)); !op.ok()) die(op.status().to_string());
      came.wait(1);
      sink = sink + static_cast<unsigned>(parts[0].data()[0]) + static_cast<unsigned>(parts[0].data()[bytes - 1]);
      report.received_ns = now_ns();
      if (bytes >= kMib && !quick) report.in_pool = in_pool_mapping(parts[0].data());
      report.released_ns = now_ns();
      parts.clear();
    } else {
      report.received_ns = now_ns();
    }
    send_all(fd, &report, sizeof report);
  }
}

class Bench {
 public:
  Bench(Relay& relay, int fd, Waiting waiting) : relay_(relay), fd_(fd), waiting_(waiting) {}

  struct Times {
    double one_way_us = 0, put_us = 0, put_cpu_us = 0, done_us = 0;
    bool in_pool = false;
  };
  Times transfer(const SharedBytes& bytes) {
    Counter ended(waiting_);
    int64_t done_ns = 0;
    PutRequest put;
    put.parts = {bytes};
    put.done = [&](const Status& status) {
      if (!status.ok()) die(status.to_string());
      done_ns = now_ns();
      ended.add();
    };
    const int64_t cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
    const int64_t begin = now_ns();
    const Result<PutTicket> ticket = relay_.put(std::move(put));
    const int64_t offered = now_ns();
    const int64_t cpu_end = now_ns(CLOCK_THREAD_CPUTIME_ID);
    if (!ticket.ok()) die(ticket.status().to_string());
    tell(bytes.size_bytes(), ticket->descriptor);
    ended.wait(1);
    const Report report = hear();
    return {static_cast<double>(report.received_ns - begin) / 1e3, static_cast<double>(offered - begin) / 1e3,
            static_cast<double>(cpu_end - cpu) / 1e3, static_cast<double>(done_ns - report.released_ns) / 1e3,
            report.in_pool != 0};
  }
  // The time for each message of a train.
  double train_us(const SharedBytes& bytes) {
    Counter ended(waiting_);
    const int64_t begin = now_ns();
    for (int i = 0; i < kTrain; ++i) {
      ended.wait(i - on_their_way(bytes.size_bytes()) + 1);
      PutRequest put;
      put.parts = {bytes};
      put.done = [&](const Status& status) {
        if (!status.ok()) die(status.to_string());
        ended.add();
      };
      const Result<PutTicket> ticket = relay_.put(std::move(put));
      if (!ticket.ok()) die(ticket.status().to_string());
      tell(bytes.size_bytes() | kQuick, ticket->descriptor);
    }
    Report report;
    for (int i = 0; i < kTrain; ++i) report = hear();
    ended.wait(kTrain);
    return static_cast<double>(report.received_ns - begin) / 1e3 / kTrain;
  }
  double bare_us(const std::string& descriptor) {
    const int64_t begin = now_ns();
    tell(0, descriptor);
    return static_cast<double>(hear().received_ns - begin) / 1e3;
  }

 private:
  void tell(uint64_t bytes, const std::string& descriptor) {
    std::string message(8, '\0');
    std::memcpy(message.data(), &bytes, 8);
    message += descriptor;
    send_all(fd_, message.data(), message.size());
  }
  Report hear() {
    Report report;
    if (bench::receive(waiting_, fd_, &report, sizeof report) != sizeof report) die("the reader is gone");
    return report;
  }

  Relay& relay_;
  const int fd_;
  const Waiting waiting_;
};

SharedBytes filled(std::size_t size, int value) {
  Buffer buffer(size);
  std::memset(buffer.data(), value, size);
  return SharedBytes(std::move(buffer));
}

struct Column {
  std::vector<double> us;
  double median() const { return quantile(us, 0.5); }
  double best() const { return quantile(us, 0); }
};

// The same copies, by memcpy.
class Copies {
 public:
  explicit Copies(const SharedBytes& source) : source_(source) {
    for (int i = 0; i < on_their_way(source.size_bytes()); ++i) {
      std::memset(targets_.emplace_back(source.size_bytes()).data(), 2, source.size_bytes());
    }
  }
  double one_us(clockid_t clock, std::size_t target = 0) {
    const int64_t begin = now_ns(clock);
    std::memcpy(targets_[target].data(), source_.data(), source_.size_bytes());
    return static_cast<double>(now_ns(clock) - begin) / 1e3;
  }
  double train_us() {
    const int64_t begin = now_ns();
    for (std::size_t i = 0; i < kTrain; ++i) (void)one_us(CLOCK_MONOTONIC, i % targets_.size());
    return static_cast<double>(now_ns() - begin) / 1e3 / kTrain;
  }

 private:
  const SharedBytes source_;
  std::vector<Buffer> targets_;
};

void throughput(Bench& bench, int rounds, std::size_t largest) {
  fmt::print("{:>5} | {:>10} {:>10} {:>6} {:>6} | {:>10} {:>10} {:>6} {:>6} | {:>6}\n", "MiB", "memcpy us", "one way",
             "ratio", "best", "memcpy us", "streamed", "ratio", "best", "cpu");
  bool in_pool = true;
  for (std::size_t size = kMib; size <= largest; size *= 4) {
    const SharedBytes source = filled(size, 1);
    Copies copies(source);
    Column copy, one_way, copy_train, train, copy_cpu, put_cpu;
    for (int i = -kWarmRounds; i < rounds; ++i) {
      const double copied = copies.one_us(CLOCK_MONOTONIC);
      const Bench::Times times = bench.transfer(source);
      const double copied_cpu = copies.one_us(CLOCK_THREAD_CPUTIME_ID);
      const double put_cpu_us = bench.transfer(source).put_cpu_us;
      const double copied_train = copies.train_us();
      const double trained = bench.train_us(source);
      if (i < 0) continue;
      copy.us.push_back(copied);
      one_way.us.push_back(times.one_way_us);
      copy_cpu.us.push_back(copied_cpu);
      put_cpu.us.push_back(put_cpu_us);
      copy_train.us.push_back(copied_train);
      train.us.push_back(trained);
      in_pool = in_pool && times.in_pool;
    }
    fmt::print("{:5} | {:10.1f} {:10.1f} {:6.3f} {:6.3f} | {:10.1f} {:10.1f} {:6.3f} {:6.3f} | {:6.3f}\n", size / kMib,
               copy.median(), one_way.median(), copy.median() / one_way.median(), copy.best() / one_way.best(),
               copy_train.median(), train.median(), copy_train.median() / train.median(),
               copy_train.best() / train.best(), copy_cpu.median() / put_cpu.median());
  }
  fmt::print("copies of each byte: put 1, get {}\n", in_pool ? "0 (the bytes lie in the writer's pool)" : "1");
}

void latency(Bench& bench, int messages) {
  const SharedBytes source = filled(kSmallBytes, 3);
  const std::string descriptor(128, 'd');
  std::vector<double> one_way, put, done, bare;
  for (int i = -100; i < messages; ++i) {
    const Bench::Times times = bench.transfer(source);
    const double floor_us = bench.bare_us(descriptor);
    if (i < 0) continue;
    one_way.push_back(times.one_way_us);
    put.push_back(times.put_us);
    done.push_back(times.done_us);
    bare.push_back(floor_us);
  }
  fmt::print("4 KiB, {} messages, us:       p50      p99\n", messages);
  const auto line = [](const char* name, const std::vector<double>& values) {
    fmt::print("  {:24} {:8.1f} {:8.1f}\n", name, quantile(values, 0.5), quantile(values, 0.99));
  };
  line("one way", one_way);
  line("of it put()", put);
  line("socket alone", bare);
  line("release to done", done);
}

void run(Waiting waiting, bool awake, int rounds, int messages, std::size_t largest) {
  std::string load;
  std::getline(std::ifstream("/proc/loadavg"), load);
  fmt::print("{}{}, load {}\n", bench::name_of(waiting),
             awake && waiting == Waiting::kSleep ? " on processors that are kept awake" : "", load);
  std::fflush(stdout);
  const bench::KeepAwake kept(awake && waiting == Waiting::kSleep);
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0) die("socketpair");
  const pid_t child = ::fork();  // before any thread
  if (child == 0) {
    ::close(fds[0]);
    bench::settle(waiting, 1);
    reader_main(fds[1], waiting);
    std::_Exit(0);
  }
  ::close(fds[1]);
  bench::settle(waiting, 0);
  {
    Result<std::unique_ptr<Relay>> relay = make_shm_relay({.pool_bytes = std::max(4 * 16 * kMib, 2 * largest)});
    if (!relay.ok()) die(relay.status().to_string());
    Bench bench(**relay, fds[0], waiting);
    throughput(bench, rounds, largest);
    latency(bench, messages);
  }
  bench::unsettle();
  ::close(fds[0]);
  ::waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const int messages = argc > 2 ? std::atoi(argv[2]) : 20'000;
  const std::size_t largest = (argc > 3 ? static_cast<std::size_t>(std::atoi(argv[3])) : 256) * kMib;
  const bool awake = argc <= 4 || std::strcmp(argv[4], "idle") != 0;
  if (rounds < 1 || messages < 1 || largest < kMib) die("wanted rounds, messages and MiB of 1 or more");
  for (const Waiting waiting : {Waiting::kPoll, Waiting::kSleep}) run(waiting, awake, rounds, messages, largest);
}
