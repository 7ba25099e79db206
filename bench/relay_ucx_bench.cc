// The UCX relay between two processes, against ucx_perftest for the same operation in the same run.
//
//   relay_ucx_bench [rounds=3] [road=all|tcp|shm]
//
// Per road (tcp on loopback; shared memory) and size, one after the other and `rounds` times:
//   stream   puts of another process got into memory of this one, kOnTheirWay at a time; each put is there before it is
//            wanted. One buffer on each side is used again and again, as ucx_perftest does: a put is for many readers
//                                                  | ucx_perftest -t ucp_am_bw -O kOnTheirWay
//   one      one at a time, each from the end of the one before        | ucx_perftest -t ucp_am_bw -O 1
//   fresh    as stream, where each put is got once: as many buffers as there are puts       | as stream
//   latency  the same with 4 KiB: a request, and an answer with the bytes     | twice ucx_perftest -t ucp_am_lat
// A ratio is ours over UCX's own: of rates the higher, of latency the lower is the better.
//
// ucx_perftest runs in both of its modes: polling (it spins on both sides without ever sleeping) and sleeping. The
// relay's threads have one mode, in which they look again for a while and then sleep. A get is begun by the end of the
// one before, on the relay's own thread, and counted until its `done`. Descriptors go over a socket pair, as they would
// over the control plane. ucx_perftest sums nothing; the relay's checksums are as they are by default (on where bytes
// go by message), and without them in the second line of each.
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "relay/ucx/ucx_relay.h"
#include "waiting.h"

namespace {

using namespace millrace;

constexpr std::size_t kKib = 1024, kMib = 1024 * kKib;
constexpr int kOnTheirWay = 4;

struct Road {
  const char* name;
  const char* listen;
  const char* tls;  // the same for ucx_perftest
};
constexpr Road kRoads[] = {{"tcp", "ucx:tcp,self@lo", "tcp,self"},
                           {"shm", "ucx:posix,cma,tcp,self@lo", "posix,cma,self"}};

[[noreturn]] void die(const std::string& why) {
  fmt::print(stderr, "relay_ucx_bench: {}\n", why);
  std::_Exit(2);
}

double now_s() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void write_all(int fd, const void* data, std::size_t bytes) {
  if (::send(fd, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) die("the other side is gone");
}
std::string read_some(int fd) {
  std::string text(8192, '\0');
  const ssize_t got = ::recv(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::unique_ptr<Relay> make(const Road& road, bool checksum) {
  RelayOptions options;
  options.listen = road.listen;
  options.checksum = checksum;
  options.pool_bytes = std::size_t{512} * kMib;
  auto relay = make_ucx_relay(options);
  if (!relay.ok()) die(relay.status().to_string());
  return std::move(*relay);
}

// What this process asks of the writer: so many puts of so many bytes, each for so many gets, of which it gets the
// descriptors.
struct Order {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t readers = 1;
};
void write_for_ever(const Road& road, int fd, bool checksum) {
  const std::unique_ptr<Relay> relay = make(road, checksum);
  SharedBytes bytes;
  for (;;) {
    const std::string message = read_some(fd);
    Order order;
    if (message.size() != sizeof order) return;
    std::memcpy(&order, message.data(), sizeof order);
    if (bytes.size_bytes() != order.bytes) {
      Buffer fresh(order.bytes);
      std::memset(fresh.data(), 7, order.bytes);
      bytes = SharedBytes(std::move(fresh));
    }
    const auto put = [&] {
      PutRequest request;
      request.parts = {bytes};
      request.readers = static_cast<int>(order.readers);
      request.done = [](const Status&) {};
      return relay->put(std::move(request));
    };
    for (uint64_t i = 0; i < order.count; ++i) {
      auto ticket = put();
      // The credits of what was got last may be on their way back.
      for (int tries = 0; !ticket.ok() && tries < 1000; ++tries) {
        ::usleep(1000);
        ticket = put();
      }
      if (!ticket.ok()) die(ticket.status().to_string());
      write_all(fd, ticket->descriptor.data(), ticket->descriptor.size());
    }
  }
}

// Gets of the same size, `at_once` at a time, each begun by the end of one before.
class Chain {
 public:
  Chain(Relay& relay, std::vector<std::string> descriptors, std::vector<std::vector<std::byte>>& memory, int at_once)
      : relay_(relay), descriptors_(std::move(descriptors)), memory_(memory), at_once_(at_once) {}
  // Seconds of each get.
  std::vector<double> run() {
    for (int i = 0; i < at_once_ && i < static_cast<int>(descriptors_.size()); ++i) begin(static_cast<std::size_t>(i));
    over_.wait(1);
    return std::move(took_);
  }

 private:
  void begin(std::size_t slot) {
    const std::size_t index = next_.fetch_add(1);
    if (index >= descriptors_.size()) return;
    const double start = now_s();
    std::vector<std::byte>& into = memory_[slot % memory_.size()];
    GetRequest get{.descriptor = descriptors_[index], .sizes = {into.size()}, .destination = {into}};
    get.done = [this, slot, start](const Result<std::vector<SharedBytes>>& parts) {
      if (!parts.ok()) die(parts.status().to_string());
      begin(slot);
      bool last = false;
      {
        std::lock_guard lock(mutex_);
        took_.push_back(now_s() - start);
        last = took_.size() == descriptors_.size();
      }
      // Once: whoever waits is not woken for each. Behind the lock, which may be gone when the waiter runs.
      if (last) over_.add();
    };
    if (const auto op = relay_.get(std::move(get)); !op.ok()) die(op.status().to_string());
  }

  Relay& relay_;
  const std::vector<std::string> descriptors_;
  std::vector<std::vector<std::byte>>& memory_;
  const int at_once_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::vector<double> took_;
  bench::Counter over_{bench::Waiting::kSleep};
};

struct Reader {
  std::unique_ptr<Relay> relay;
  int fd = -1;

  // Seconds of each get, and of all together. Each put is for `readers` gets, one after the other.
  std::pair<std::vector<double>, double> gets(std::size_t size, int count, int at_once, int readers = 1) {
    const int puts = static_cast<int>(std::min<std::size_t>(readers == 1 ? 32 : 8, std::size_t{384} * kMib / size));
    const int in_a_row = puts * readers;
    std::vector<std::vector<std::byte>> memory(readers == 1 ? static_cast<std::size_t>(at_once) : 1);
    for (auto& buffer : memory) buffer.assign(size, std::byte{1});
    std::vector<double> took;
    double all = 0;
    for (int done = -in_a_row; done < count; done += in_a_row) {  // the first ones warm up
      const Order order{size, static_cast<uint64_t>(puts), static_cast<uint64_t>(readers)};
      write_all(fd, &order, sizeof order);
      std::vector<std::string> descriptors;
      for (int i = 0; i < puts; ++i)
        descriptors.insert(descriptors.end(), static_cast<std::size_t>(readers), read_some(fd));
      const double begin = now_s();
      const std::vector<double> some = Chain(*relay, std::move(descriptors), memory, at_once).run();
      if (done < 0) continue;
      all += (now_s() - begin) / in_a_row;
      took.insert(took.end(), some.begin(), some.end());
    }
    return {std::move(took), all * in_a_row / static_cast<double>(took.size())};
  }
  double rate(std::size_t size, int count, int at_once, int readers) {  // bytes per second
    return static_cast<double>(size) / gets(size, count, at_once, readers).second;
  }
};

struct Perf {
  double latency_us = 0;  // over all
  double bytes_per_s = 0;
};
// ucx_perftest with itself; zeros where there is none.
Perf perftest(const Road& road, bench::Waiting waiting, const char* test, std::size_t size, int messages,
              int at_once = 1) {
  static int port = 20'000 + static_cast<int>(::getpid()) % 20'000;
  ++port;
  const char* const mode = waiting == bench::Waiting::kPoll ? "poll" : "sleep";
  const std::string command = fmt::format(
      "export UCX_TLS={} UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n UCX_HANDLE_ERRORS=none; "
      "ucx_perftest -E {} -p {} >/dev/null 2>&1 & s=$!; sleep 0.5; "
      "timeout 60 ucx_perftest 127.0.0.1 -p {} -e -E {} -O {} -t {} -s {} -n {} -w {} 2>/dev/null | grep Final:; wait "
      "$s",
      road.tls, mode, port, port, mode, at_once, test, size, messages, std::min(messages / 4 + 2, 1000));
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  char line[512] = {};
  const bool any = std::fgets(line, sizeof(line), pipe) != nullptr;
  ::pclose(pipe);
  double n = 0, percentile = 0, average = 0, overall = 0, rate = 0, rate_overall = 0;
  if (!any || std::sscanf(line, "Final: %lf %lf %lf %lf %lf %lf", &n, &percentile, &average, &overall, &rate,
                          &rate_overall) != 6) {
    return {};
  }
  return {overall, rate_overall * static_cast<double>(kMib)};
}

double median_ratio(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(theirs[i] > 0 ? ours[i] / theirs[i] : 0);
  return median(ratios);
}

void print(const Road& road, const std::string& what, const char* unit, const std::vector<double>& ours,
           const std::array<std::vector<double>, 2>& theirs) {
  fmt::print("{:4} {:24} ours {:8.2f}  UCX polling {:8.2f} ratio {:5.2f}  UCX sleeping {:8.2f} ratio {:5.2f}  {}\n",
             road.name, what, median(ours), median(theirs[0]), median_ratio(ours, theirs[0]), median(theirs[1]),
             median_ratio(ours, theirs[1]), unit);
  std::fflush(stdout);
}

constexpr std::array kModes = {bench::Waiting::kPoll, bench::Waiting::kSleep};

void compare(const Road& road, Reader& reader, int rounds, const char* sums) {
  struct Size {
    const char* name;
    std::size_t bytes;
    int messages;
    int readers;  // of one put, where it is hot
  };
  struct Kind {
    const char* name;
    bool hot;
    int at_once;
  };
  constexpr Kind kKinds[] = {{"stream", true, kOnTheirWay}, {"one", true, 1}, {"fresh", false, kOnTheirWay}};
  for (const Size& size : {Size{"1 MiB", kMib, 1536, kMaxRelayReaders}, Size{"64 MiB", 64 * kMib, 18, 3}}) {
    for (const Kind& kind : kKinds) {
      std::vector<double> ours;
      std::array<std::vector<double>, 2> theirs;
      for (int round = 0; round < rounds; ++round) {
        ours.push_back(reader.rate(size.bytes, size.messages, kind.at_once, kind.hot ? size.readers : 1) / 1e9);
        for (std::size_t i = 0; i < kModes.size(); ++i) {
          theirs[i].push_back(
              perftest(road, kModes[i], "ucp_am_bw", size.bytes, size.messages, kind.at_once).bytes_per_s / 1e9);
        }
      }
      print(road, fmt::format("{} {}{}", kind.name, size.name, sums), "GB/s", ours, theirs);
    }
  }
  std::vector<double> latency;
  std::array<std::vector<double>, 2> theirs;
  for (int round = 0; round < rounds; ++round) {
    latency.push_back(median(reader.gets(4 * kKib, 3200, 1).first) * 1e6);
    for (std::size_t i = 0; i < kModes.size(); ++i) {
      theirs[i].push_back(2 * perftest(road, kModes[i], "ucp_am_lat", 4 * kKib, 5000).latency_us);
    }
  }
  print(road, fmt::format("latency 4 KiB{}", sums), "us", latency, theirs);
}

void run(const Road& road, int rounds, bool checksum) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) die("no socket pair");
  std::fflush(stdout);
  const pid_t child = ::fork();  // before any thread
  if (child == 0) {
    ::close(pair[0]);
    write_for_ever(road, pair[1], checksum);
    std::_Exit(0);
  }
  ::close(pair[1]);
  {
    Reader reader{make(road, checksum), pair[0]};
    compare(road, reader, rounds, checksum ? "" : ", no sums");
  }
  ::close(pair[0]);
  (void)::waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 3;
  const std::string_view wanted = argc > 2 ? argv[2] : "all";
  std::array<double, 3> load{};
  if (::getloadavg(load.data(), 3) == 3) {
    fmt::print("{} cores, load {:.1f} {:.1f} {:.1f}\n", ::sysconf(_SC_NPROCESSORS_ONLN), load[0], load[1], load[2]);
  }
  for (const Road& road : kRoads) {
    if (wanted != "all" && wanted != road.name) continue;
    for (const bool checksum : {true, false}) run(road, rounds, checksum);
  }
}
