// The UCX relay between two processes, against ucx_perftest for the same operation in the same run.
//
//   relay_ucx_bench [rounds=3] [road=all|tcp|shm]
//
// Per road (tcp on loopback; shared memory) and size, one after the other and `rounds` times:
//   stream   messages put here and got by another process into memory of its own, kOnTheirWay at a time, from the first
//            put() to the last one's end           | ucx_perftest -t ucp_am_bw
//   get      the gets alone, one at a time, of puts that are there already (shared memory: a copy out of the writer's
//            pool)                                 | ucx_perftest -t ucp_get
//   latency  one get of 4 KiB: a request, and an answer with the bytes     | twice ucx_perftest -t ucp_am_lat
// A ratio is ours over UCX's own: of rates the higher, of latency the lower is the better. Descriptors go over a socket
// pair, as they would over the control plane. ucx_perftest spins on both sides without ever sleeping and sums nothing;
// the relay's checksums are as they are by default (on for tcp, where bytes go by message).
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "relay/ucx/ucx_relay.h"

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

// Counts ends; several threads.
struct Counter {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
  void add() {
    std::lock_guard lock(mutex);
    ++count;
    changed.notify_all();
  }
  void wait(int wanted) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return count >= wanted; });
  }
};

std::unique_ptr<Relay> make(const Road& road) {
  RelayOptions options;
  options.listen = road.listen;
  options.pool_bytes = std::size_t{512} * kMib;
  auto relay = make_ucx_relay(options);
  if (!relay.ok()) die(relay.status().to_string());
  return std::move(*relay);
}

// The reader. Told "SIZE MODE" ('s' stream, 'l' one at a time), then descriptors; an empty message ends it. For 'l' it
// answers each with the seconds that get() took.
void read_for_ever(const Road& road, int fd) {
  const std::unique_ptr<Relay> relay = make(road);
  std::vector<std::vector<std::byte>> memory(kOnTheirWay);
  std::size_t size = 0;
  char mode = 's';
  int begun = 0;
  Counter ended;
  for (std::string message = read_some(fd); !message.empty(); message = read_some(fd)) {
    if (message[0] == '#') {
      mode = message[1];
      size = std::strtoull(message.c_str() + 2, nullptr, 10);
      for (auto& buffer : memory) buffer.assign(size, std::byte{1});
      write_all(fd, "ok", 2);
      continue;
    }
    if (mode == 's') ended.wait(begun - kOnTheirWay + 1);
    const double begin = now_s();
    GetRequest get{.descriptor = std::move(message), .sizes = {size}, .destination = {memory[begun % kOnTheirWay]}};
    get.done = [&ended](const Result<std::vector<SharedBytes>>& parts) {
      if (!parts.ok()) die(parts.status().to_string());
      ended.add();
    };
    ++begun;
    if (const auto op = relay->get(std::move(get)); !op.ok()) die(op.status().to_string());
    if (mode == 's') continue;
    ended.wait(begun);
    const double took = now_s() - begin;
    write_all(fd, &took, sizeof(took));
  }
  ended.wait(begun);
}

struct Writer {
  std::unique_ptr<Relay> relay;
  int fd = -1;

  void set_mode(char mode, std::size_t size) {
    const std::string text = fmt::format("#{}{}", mode, size);
    write_all(fd, text.data(), text.size());
    if (read_some(fd) != "ok") die("no answer");
  }
  void put(const SharedBytes& bytes, Counter& ended) {
    PutRequest request;
    request.parts = {bytes};
    request.done = [&ended](const Status& status) {
      if (!status.ok()) die(status.to_string());
      ended.add();
    };
    const auto ticket = relay->put(std::move(request));
    if (!ticket.ok()) die(ticket.status().to_string());
    write_all(fd, ticket->descriptor.data(), ticket->descriptor.size());
  }
  // Bytes per second.
  double stream(std::size_t size, int messages) {
    set_mode('s', size);
    const SharedBytes bytes{Buffer(size)};
    std::memset(const_cast<std::byte*>(bytes.data()), 7, size);
    double begin = 0;
    Counter ended;
    const int warm = kOnTheirWay;
    for (int i = 0; i < messages + warm; ++i) {
      ended.wait(i - kOnTheirWay + 1);
      if (i == warm) {
        ended.wait(warm);
        begin = now_s();
      }
      put(bytes, ended);
    }
    ended.wait(messages + warm);
    return static_cast<double>(size) * messages / (now_s() - begin);
  }
  // Seconds of each get.
  std::vector<double> gets(std::size_t size, int messages) {
    set_mode('l', size);
    const SharedBytes bytes{Buffer(size)};
    std::memset(const_cast<std::byte*>(bytes.data()), 7, size);
    std::vector<double> took;
    Counter ended;
    const int warm = 3;
    for (int i = 0; i < messages + warm; ++i) {
      put(bytes, ended);
      const std::string answer = read_some(fd);
      double seconds = 0;
      if (answer.size() != sizeof(seconds)) die("no answer");
      std::memcpy(&seconds, answer.data(), sizeof(seconds));
      if (i >= warm) took.push_back(seconds);
      ended.wait(i + 1);
    }
    return took;
  }
};

struct Perf {
  double latency_us = 0;  // over all
  double bytes_per_s = 0;
};
// ucx_perftest with itself; zeros where there is none.
Perf perftest(const Road& road, const char* test, std::size_t size, int messages) {
  static int port = 20'000 + static_cast<int>(::getpid()) % 20'000;
  ++port;
  const std::string command = fmt::format(
      "export UCX_TLS={} UCX_NET_DEVICES=lo UCX_WARN_UNUSED_ENV_VARS=n UCX_HANDLE_ERRORS=none; "
      "ucx_perftest -p {} >/dev/null 2>&1 & s=$!; sleep 0.5; "
      "timeout 120 ucx_perftest 127.0.0.1 -p {} -e -t {} -s {} -n {} -w {} 2>/dev/null | grep Final:; wait $s",
      road.tls, port, port, test, size, messages, std::min(messages / 4 + 2, 1000));
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

void print(const Road& road, const char* what, const char* unit, const std::vector<double>& ours,
           const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i) ratios.push_back(theirs[i] > 0 ? ours[i] / theirs[i] : 0);
  std::string each;
  for (const double ratio : ratios) each += fmt::format(" {:.2f}", ratio);
  fmt::print("{:4} {:14} ours {:9.2f}  UCX's {:9.2f} {:5}  ratio {:.2f}  (rounds:{})\n", road.name, what, median(ours),
             median(theirs), unit, median(ratios), each);
  std::fflush(stdout);
}

void compare(const Road& road, Writer& writer, int rounds) {
  struct Size {
    const char* name;
    std::size_t bytes;
    int messages;
  };
  const bool shm = std::string_view(road.name) == "shm";
  for (const Size& size : {Size{"1 MiB", kMib, 400}, Size{"64 MiB", 64 * kMib, 12}}) {
    std::vector<double> stream, perf_stream, get, perf_get;
    for (int round = 0; round < rounds; ++round) {
      stream.push_back(writer.stream(size.bytes, size.messages) / 1e9);
      perf_stream.push_back(perftest(road, "ucp_am_bw", size.bytes, size.messages).bytes_per_s / 1e9);
      if (!shm) continue;
      get.push_back(static_cast<double>(size.bytes) / median(writer.gets(size.bytes, size.messages)) / 1e9);
      perf_get.push_back(perftest(road, "ucp_get", size.bytes, size.messages).bytes_per_s / 1e9);
    }
    print(road, fmt::format("stream {}", size.name).c_str(), "GB/s", stream, perf_stream);
    if (shm) print(road, fmt::format("get {}", size.name).c_str(), "GB/s", get, perf_get);
  }
  std::vector<double> latency, perf_latency;
  for (int round = 0; round < rounds; ++round) {
    latency.push_back(median(writer.gets(4 * kKib, 5000)) * 1e6);
    perf_latency.push_back(2 * perftest(road, "ucp_am_lat", 4 * kKib, 5000).latency_us);
  }
  print(road, "latency 4 KiB", "us", latency, perf_latency);
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
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) die("no socket pair");
    std::fflush(stdout);
    const pid_t child = ::fork();  // before any thread
    if (child == 0) {
      ::close(pair[0]);
      read_for_ever(road, pair[1]);
      std::_Exit(0);
    }
    ::close(pair[1]);
    {
      Writer writer{make(road), pair[0]};
      compare(road, writer, rounds);
    }
    ::close(pair[0]);
    (void)::waitpid(child, nullptr, 0);
  }
}
